-- What a version of a Python workflow takes (names of its parameters, and which are required), as workers last said: JSON of
-- core/parameters.py. A start that does not fit is refused before it is written; null: nothing is checked.

alter table perdure.workflow_version add column parameters text;
