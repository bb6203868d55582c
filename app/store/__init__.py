"""Everything SQL: tables, repositories, leases; it never commits and never decides."""
