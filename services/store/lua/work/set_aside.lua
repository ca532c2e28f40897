-- Release an attempt whose worker leaves, and keep what the attempt has sampled of its group.
-- Invariants: only the attempt that holds a task leaves a partial, at the moment at which the task is returned: no
-- token gets into two groups. Partials and the stream together stay within `stream_bytes`.
-- KEYS run attempts held returned partials bytes
-- ARGV attempt oldest blob
--   oldest: the version tag of the oldest token
-- Reply 1 kept, 0 not held, 2 no space: a partial that an earlier attempt has left stays
local task = end_attempt(attempts, held, attempt)
if not task then return 0 end
return_task(returned, task)
local budget = tonumber(redis.call('HGET', run, 'stream_bytes') or 'inf')
local before = redis.call('HSTRLEN', partials, position_of(task))
if tonumber(redis.call('GET', bytes) or '0') - before + #blob > budget then return 2 end
forget_partial(partials, bytes, task)
redis.call('HSET', partials, position_of(task), blob, position_of(task) .. ':oldest', oldest)
redis.call('INCRBY', bytes, #blob)
return 1
