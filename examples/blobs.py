"""A file of any size as a result: the workflow passes a handle on, tasks stream the content.

    python examples/blobs.py

Without further settings the content is kept in the database, up to 16 MiB each; PERDURE_PAYLOADS=s3://bucket/prefix names an object store.
"""

import asyncio
import gzip
import hashlib

from perdure import Blob, Perdure, task, workflow


@task
def export(rows: int) -> Blob:
    with Blob.writer("orders.csv") as out:
        out.write(b"order,amount\n")
        for n in range(rows):
            out.write(f"{n},{n % 97}\n".encode())
    return out.blob


@task
def total(orders: Blob) -> int:
    with orders.open() as file:
        next(file)
        return sum(int(line.split(b",")[1]) for line in file)


@task(process=True)
def compressed(orders: Blob) -> Blob:
    with Blob.writer("orders.csv.gz") as out:
        out.write(gzip.compress(orders.read_bytes(), mtime=0))
    return out.blob


@workflow
async def report(rows: int) -> dict[str, int | Blob]:
    orders = await export(rows)
    return {"total": await total(orders), "size": orders.size, "file": await compressed(orders)}


async def main() -> None:
    async with Perdure():
        result = await report.run(100_000)
        file = result["file"]
        assert isinstance(file, Blob)
        content = await file.aread_bytes()
        print(f"total {result['total']}, {result['size']} bytes, {file.name} is smaller: {file.size < result['size']}")
        print("checked:", hashlib.sha256(content).hexdigest() == file.sha256)


if __name__ == "__main__":
    asyncio.run(main())
