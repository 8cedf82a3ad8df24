"""Writes the two OpenAPI documents into a folder: `documents.py FOLDER`.

They are the snapshots of the unit tests, which compare them with what the services serve.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SNAPSHOTS = {
    "engine": "crates/engine/tests/unit/snapshots/engine__http__tests__openapi.snap",
    "orchestrator": "crates/orchestrator/tests/unit/http/snapshots/orchestrator__http__tests__openapi.snap",
}


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for service, snapshot in SNAPSHOTS.items():
        # The snapshot's head ends with the second `---`.
        text = (ROOT / snapshot).read_text().split("---\n", 2)[2]
        document = json.dumps(json.loads(text), indent=2, sort_keys=True, ensure_ascii=False)
        (folder / f"{service}.json").write_text(document + "\n")


main()
