"""Drives a strict provider through the vendors' own SDKs.

Usage: check.py BASE_URL. The provider is scripted through its control endpoint. The SDKs parse what
the provider sends and raise their typed errors, so this proves that the wires are the vendors'
and not only what the Rust tests take them for. Exits with 77 when an SDK cannot be imported.
"""

import sys

try:
    import anthropic  # noqa: F401
    import google.genai  # noqa: F401
    import ollama  # noqa: F401
    import openai  # noqa: F401
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(77)

import wire_anthropic  # noqa: E402
import wire_gemini  # noqa: E402
import wire_ollama  # noqa: E402
import wire_openai  # noqa: E402
import wire_responses  # noqa: E402

WIRES = [wire_anthropic, wire_openai, wire_responses, wire_gemini, wire_ollama]

for wire in WIRES:
    for check in wire.CHECKS:
        check()
        print("ok", check.__name__)
