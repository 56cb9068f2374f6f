-- Chapter 18: programs of two versions beside one schema.

-- A program works beside a schema that has migrations which it does not know, as long as it knows
-- `oldest_program`: the migration that is the newest one of the oldest program that may run. A
-- migration that only adds leaves the number alone. One that takes away what such a program uses
-- raises it, and is released one version after the program that has stopped using it.
create table flyball.compatibility (
    one            boolean primary key default true check (one),
    oldest_program bigint  not null
);
insert into flyball.compatibility (oldest_program) values (18);
