-- Destroyed engines whose backups are still to be erased.

CREATE TABLE backup_erasures (
    engine_id TEXT PRIMARY KEY
);
