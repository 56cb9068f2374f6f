-- Chapter 21: sessions of browsers that people have ended. A session is a signed cookie that no table knows; those that end before
-- their time stand here, by their digest, until that time, so that every process refuses them.
create table flyball.signed_out (
    digest  text   primary key,
    until_s bigint not null
);
