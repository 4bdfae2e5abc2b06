"""The one edge that speaks NATS and JetStream. Nothing outside this package imports `nats`."""
