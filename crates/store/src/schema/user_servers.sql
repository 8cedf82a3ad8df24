-- The tool servers that the user has added, and the definitions of their tools that the user has approved.
CREATE TABLE user_servers (
    server     INTEGER PRIMARY KEY,
    name       TEXT NOT NULL UNIQUE,
    definition TEXT NOT NULL,
    pins       TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
);
