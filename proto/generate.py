"""Generate src/perdure/wire/pb from the .proto files: `just generate`. A test checks that it is up to date.

Generated code runs on the major of protobuf that made it and on the next one. The group `generate` of pyproject.toml pins the compiler of the
oldest protobuf that Perdure supports; its protobuf conflicts with the newest, so it is installed in an environment of its own.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).parent
OUT = HERE.parent / "src" / "perdure" / "wire" / "pb"


def generate(out: Path) -> None:
    """Messages and their stubs for type checkers. The few lines of service code are written by hand where they are used."""
    out.mkdir(parents=True, exist_ok=True)
    files = [str(p.relative_to(HERE)) for p in sorted(HERE.rglob("*.proto"))]
    code = protoc.main(
        ["protoc", f"-I{HERE}", f"--python_out={out}", f"--mypy_out=quiet:{out}", *files],
    )
    if code:
        raise SystemExit(code)
    for made in sorted((out / "perdure" / "v1").iterdir()):
        made.rename(out / made.name)
    (out / "perdure" / "v1").rmdir()
    (out / "perdure").rmdir()
    (out / "__init__.py").write_text('"""Generated from proto/ by proto/generate.py. Do not edit."""\n')
    for stub in out.glob("*.pyi"):
        stub.write_text(re.sub(r"[ \t]+$", "", stub.read_text(), flags=re.M))


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
