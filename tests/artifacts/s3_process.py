"""An S3-compatible server for tests, on a free port of loopback, which it says."""

import logging
import sys
import threading

from moto.server import ThreadedMotoServer

MOST_S = 900.0
"""A server that nobody stopped ends by itself."""

if __name__ == "__main__":
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    sys.stdout.write(f"port {server.get_host_and_port()[1]}\n")
    sys.stdout.flush()
    threading.Event().wait(MOST_S)
