-- The role that owns the server's database. It is no superuser: row-level security would not hold one to its tenant.
create role rejoinder login password 'rejoinder';
create database rejoinder owner rejoinder encoding 'UTF8' template template0;
