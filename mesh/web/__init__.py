"""What servers of HTTP share: connections with limits, bodies, streams. It needs starlette and uvicorn."""
