"""`helm test`: the Service leads to the active orchestrator, and Pods get host names through the engines' Service.

That Service has no name without engines, so this Pod is one of its Pods, and looks for its own name.
"""
import socket
import sys
import time
import urllib.request

orchestrator, host_name = sys.argv[1:]


def until_it_works(what, attempt):
    deadline = time.monotonic() + 60
    while True:
        try:
            print(f"{what}: {attempt()}")
            return
        except OSError as error:
            if time.monotonic() > deadline:
                sys.exit(f"{what}: {error}")
            time.sleep(1)


def health():
    with urllib.request.urlopen(f"{orchestrator}/health", timeout=5) as response:
        return f"{response.status} {response.read().decode()}"


until_it_works(f"{orchestrator}/health", health)
until_it_works(host_name, lambda: socket.gethostbyname(f"{host_name}."))
