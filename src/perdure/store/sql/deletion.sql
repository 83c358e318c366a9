-- The deletion of an ended run; the function is in the schema, for engines have no right to delete history.

-- name: delete_run
-- Locks: the row of the ended run, so that it is deleted or retried, never both.
select perdure.delete_run(:run_id, :ns, :low, :high) as outcome;
