"""The query text that finds runs: `workflow = order and status in (failed, cancelled) and attr.total > 100`.

Laws:

1. A term is true or false, never unknown. A term about something that a run does not have is false: `attr.total > 100` is false for a
   run without `total`, and `not attr.total > 100` is true.
2. `x != y` is `not x = y`, and `x in (a, b)` is `x = a or x = b`.
3. A number is compared with numbers and a text with texts, by code point. A value of another kind is not equal and not less.
4. `created` is the time in the id of a run, in whole milliseconds: a query about it is a range of ids.
5. A relative time such as `-2h` is resolved once, when the text is parsed.

    parse(text, now_us) -> Node           store/run_query_sql.py makes a condition of SQL from it
"""

from perdure.core.run_query.nodes import And, Node, Not, Op, Or, Search, Term
from perdure.core.run_query.parse import FIELDS, parse

__all__ = ["FIELDS", "And", "Node", "Not", "Op", "Or", "Search", "Term", "parse"]
