-- Repeats of polls, found by their key alone.
--
-- Lock and cost: writes to open tasks wait while the index is built, over held tasks only.

-- Its condition was that of the index of all held tasks, too, and then the planner may walk that one instead: what
-- it believes a look-up costs grows with the pages that dead entries have left behind. Only held tasks have the id of
-- a poll.
drop index tasks_given;
create index tasks_given on tasks (poll_request_id, lease_owner) where poll_request_id is not null;
drop index asks_given;
create index asks_given on asks (poll_request_id, lease_owner) where poll_request_id is not null;
