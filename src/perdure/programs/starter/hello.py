"""A first workflow. Change it while `perdure dev` runs: every save is picked up.

perdure run hello names='["Ada", "Grace"]' --watch
"""

from perdure import task, wf, workflow


@task(retry=3)
async def greet(name: str) -> str:
    """Tasks do the work: any I/O you like. What they return is recorded and never done twice."""
    print(f"Hello, {name}!")
    return f"Hello, {name}!"


@task
def sign(greetings: list[str]) -> str:
    """A plain function runs in a thread."""
    return " ".join(greetings)


@workflow
async def hello(names: list[str] | None = None) -> str:
    """Workflows decide. Kill the process anywhere in here: the run goes on where it was."""
    greetings = await wf.map(greet, names or ["Ada", "Grace", "Barbara"])
    await wf.sleep("1s")  # or "30d": a row in the database, not a thread
    return await sign(greetings)
