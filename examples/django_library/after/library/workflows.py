"""What happens to a hold in the days after it was placed."""

from django.core.mail import send_mail

from library.models import Hold
from perdure import Signal, State, attempt, task, wf, workflow

picked_up = Signal("picked_up", bool)
stage = State("stage", "looking for a copy")


@task(transactional=True)
def set_aside(hold_id: int) -> bool:
    """Take one copy from the shelf. It happens once, however often the task is tried: its transaction also records the result."""
    connection = attempt().connection
    taken = connection.execute(
        "update library_book b set copies = copies - 1 from library_hold h where h.id = %s and b.id = h.book_id and b.copies > 0",
        (hold_id,),
    )
    if taken.rowcount == 0:
        return False
    connection.execute("update library_hold set status = 'ready' where id = %s", (hold_id,))
    return True


@task(transactional=True)
def put_back(hold_id: int) -> None:
    connection = attempt().connection
    connection.execute(
        "update library_book b set copies = copies + 1 from library_hold h where h.id = %s and b.id = h.book_id",
        (hold_id,),
    )
    connection.execute("update library_hold set status = 'expired' where id = %s", (hold_id,))


@task
def announce(hold_id: int) -> None:
    hold = Hold.objects.select_related("book", "member").get(pk=hold_id)
    send_mail("Your book is here", f"{hold.book} waits for you for a week.", None, [hold.member.email])


@workflow
async def prepare_hold(hold_id: int) -> str:
    while not await set_aside(hold_id):
        await wf.sleep("1h")
    await announce(hold_id)
    stage.set("waiting for its member")
    try:
        await picked_up.next(timeout="7d")
    except TimeoutError:
        await put_back(hold_id)
        return "expired"
    return "collected"
