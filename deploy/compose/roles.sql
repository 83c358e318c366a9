-- Before Perdure's schema exists: the login of servers, which may read and write rows and change nothing else.
-- `perdure migrate --roles` grants the group what it needs.
create role perdure_engine nologin;
create role perdure_server login password 'server-password' in role perdure_engine;
