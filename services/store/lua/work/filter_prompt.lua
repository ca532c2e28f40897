-- Note whether a held task lies outside the bounds of the run's prompt filter, and filter its row after `passes`
-- such tasks in a row.
-- Invariants: only the attempt that holds a task notes it. A task counts once for its row, as its last attempt
-- noted it, and not at all once a later task of the row was noted. At most `max_share` of the rows is filtered; a
-- row whose newest task lies inside is not filtered. `filtered_prompts` in `order` counts the filtered rows.
-- KEYS attempts held order prompt_filter
-- ARGV attempt row outside passes max_share
--   outside: 1 or 0
-- A row's note is 'passes before this task:position of the task:outside:filtered'.
-- Reply 1 the row is filtered, 0 it is sampled, or the attempt has ended
if not redis.call('ZSCORE', attempts, attempt) then return 0 end
local position = tonumber(position_of(redis.call('HGET', held, attempt)))
local note = redis.call('HGET', prompt_filter, row) or '0:-1:0:0'
local before, at, was_outside, was_filtered = string.match(note, '^(%d+):(-?%d+):(%d):(%d)$')
before, at, was_filtered = tonumber(before), tonumber(at), tonumber(was_filtered)
if position < at then return was_filtered end
if position > at then before = was_outside == '1' and before + 1 or 0 end
local o = hash_fields(order, 'filtered_prompts', 'dataset_rows', 'mixed_rows')
local others = tonumber(o.filtered_prompts or '0') - was_filtered
local filtered = 0
-- 0.29 times 100 rows is a little less than 29 as a double.
-- An epoch of a mixture may have fewer or more tasks than rows: `mixed_rows` counts the rows of all its datasets.
local limit = math.floor(max_share * tonumber(o.mixed_rows or o.dataset_rows) + 1e-6)
if outside == '1' and before + 1 >= tonumber(passes) and others < limit then filtered = 1 end
redis.call('HSET', order, 'filtered_prompts', others + filtered)
redis.call('HSET', prompt_filter, row, table.concat({before, position, outside, filtered}, ':'))
return filtered
