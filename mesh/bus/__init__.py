"""The only room that speaks NATS and JetStream. Nothing outside it imports `nats`."""
