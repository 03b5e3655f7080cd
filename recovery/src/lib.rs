//! Boot replay, recover, backups and restore.
