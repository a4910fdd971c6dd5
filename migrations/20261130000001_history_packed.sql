-- History is stored packed: a byte that says how, then the text, compressed against a dictionary of
-- what all events have in common. Half of a small batch is such common text.
--
-- What is there is kept as plain text (form 0). Lock and cost: rewrites history_batches under an
-- exclusive lock.
--
-- A batch with payloads of a kilobyte or two stays on its page as it is. The default would try to
-- compress everything above 2 KiB once more, and then move it to a second table with an index of its own.
alter table history_batches
    alter column events type bytea using '\x00'::bytea || convert_to(events, 'UTF8'),
    alter column journal type bytea using '\x00'::bytea || convert_to(journal, 'UTF8'),
    alter column events set storage external,
    alter column journal set storage external,
    set (toast_tuple_target = 8160);
