-- Statements compute the deadline of a flow's run themselves: a function of SQL that cannot be inlined is planned anew in every statement.
drop function perdure.flow_deadline(int, text, text, timestamptz);
