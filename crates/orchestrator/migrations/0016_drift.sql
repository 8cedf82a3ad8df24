-- Finds what the audit log says of the end of an engine that the registry does not have any more.
CREATE INDEX audit_log_of_ended_engines ON audit_log (engine_id) WHERE event IN ('destroy', 'provision_failed');
