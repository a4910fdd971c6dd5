-- Repeats of polls: which lease a poll was given is found by the poll's id, on every node.
--
-- Lock and cost: writes to open tasks wait while their index is built, over held tasks only; a new
-- column of the asks without a rewrite.

-- Held tasks by the poll that was given them. No renewal changes either, so a heartbeat stays on its page.
create index tasks_given on tasks (poll_request_id, lease_owner) where state = 1 and poll_request_id is not null;

alter table asks add column poll_request_id text;
create index asks_given on asks (poll_request_id, lease_owner) where state = 1 and poll_request_id is not null;
