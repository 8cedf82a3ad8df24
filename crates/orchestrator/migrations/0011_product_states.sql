-- Whether a product is in use: null if it is; else `disabled`, `deleting` or `deleted`. The row of a deleted product
-- stays for its audit log; its slug is free, because `slug` is another one then.

ALTER TABLE products ADD COLUMN state TEXT;
-- Since when; null if it was never disabled.
ALTER TABLE products ADD COLUMN state_since BIGINT;
-- The number of engines when its deletion began.
ALTER TABLE products ADD COLUMN engines_to_delete BIGINT;
-- The slug that a deleted product had.
ALTER TABLE products ADD COLUMN former_slug TEXT;
