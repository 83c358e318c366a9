"""Tasks that run on the nodes of a Ray cluster, and a workflow that uses them. Nodes import this module."""

import random

from perdure import Blob, task, workflow


@task(executor="ray", num_cpus=1, retry=3, timeout="10m")
def simulate(seed: int, steps: int) -> list[float]:
    """One path of a random walk. Its JSON is larger than a history takes, so it goes by reference."""
    chance, at, path = random.Random(seed), 100.0, []
    for _ in range(steps):
        at *= 1 + chance.gauss(0, 0.01)
        path.append(at)
    print(f"path {seed} ends at {at:.2f}")
    return path


@task(executor="ray", num_cpus=1)
def tabulate(paths: list[list[float]]) -> Blob:
    """All paths as one file."""
    with Blob.writer("paths.csv") as out:
        for row in zip(*paths, strict=True):
            out.write((",".join(f"{value:.3f}" for value in row) + "\n").encode())
    return out.blob


def extremes(path: list[float]) -> dict[str, float]:
    """A plain function, which the flow names by its module."""
    return {"lowest": round(min(path), 1), "highest": round(max(path), 1)}


@workflow
async def paths(seeds: list[int], steps: int) -> Blob:
    running = [simulate(seed, steps) for seed in seeds]
    return await tabulate([await path for path in running])
