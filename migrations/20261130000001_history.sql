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

-- Rows that are written once and never changed are not visited by autovacuum for having been inserted: it
-- would write every page once more, whole into the write-ahead log where checksums are on, for a map that
-- no plan here uses. What retention removes, and the age of transactions, still bring it. Statistics decide
-- nothing either, since plans are pinned, and taking them touches as many pages.
alter table history_batches set (
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_analyze_threshold = 1000000,
    autovacuum_analyze_scale_factor = 1);
alter table workflow_instances set (autovacuum_vacuum_insert_threshold = -1);
alter table request_receipts set (autovacuum_vacuum_insert_threshold = -1);
