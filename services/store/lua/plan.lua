-- Record which groups batch `step` trains, before it is trained.
-- Invariant: fenced; a step's plan, once recorded, never changes: a restarted learner replays it.
-- KEYS run plans   ARGV epoch step json([[entry, draw], ...])   Reply 1, 0 if planned, -1 fenced
if fenced(KEYS[1], ARGV[1]) then return -1 end
return redis.call('HSETNX', KEYS[2], ARGV[2], ARGV[3])
