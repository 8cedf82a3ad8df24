# Written by `generate` from `_async`; do not edit.
"""The asynchronous client, from which the synchronous one is generated."""
