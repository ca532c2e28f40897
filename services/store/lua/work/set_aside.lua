-- Release an attempt whose worker leaves, and keep what the attempt has sampled of its group.
-- Invariants: only the attempt that holds a task leaves a partial, at the moment at which the task is returned: no
-- token gets into two groups. Partials and the stream together stay within `stream_bytes`.
-- KEYS run attempts held returned partials bytes
-- ARGV attempt oldest blob
--   oldest: the version tag of the oldest token
-- Reply 1 kept, 2 the task is returned without its partial (no space), 0 not held
local task = end_attempt(attempts, held, attempt)
if not task then return 0 end
return_task(returned, task)
forget_partial(partials, bytes, task)
local budget = tonumber(redis.call('HGET', run, 'stream_bytes') or 'inf')
if tonumber(redis.call('GET', bytes) or '0') + #blob > budget then return 2 end
redis.call('HSET', partials, position_of(task), blob, position_of(task) .. ':oldest', oldest)
redis.call('INCRBY', bytes, #blob)
return 1
