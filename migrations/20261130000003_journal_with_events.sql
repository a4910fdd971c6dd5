-- A small journal is packed with the events of its batch from here on. A server that does not know this form
-- must not serve this database, and stops at a schema that is newer than its own.
comment on column history_batches.journal is 'packed facts; empty when they are packed with the events';
