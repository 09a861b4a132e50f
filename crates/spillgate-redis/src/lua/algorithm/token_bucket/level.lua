-- The formulas of a token bucket's levels and records, as fragments for token_bucket.lua and the fast paths:
-- single_charge.lua, bucket_loop.lua and bucket_reservation.lua.
--
-- They use `now`, its 48 low bits `now_low`, and the bits above them, `now_high`. They keep no other state.

-- Splits drained parts into whole tokens and the rest.
-- @fragment drain(parts, n) -> tokens, rest
rest = parts % n
tokens = (parts - rest) / n
-- @end

-- Records are short if their fields allow it.
-- @fragment has_long_records(burst, d, count, code) -> is_long
is_long = code == 0 or d > 1 or count >= 65536 or burst >= 65536
-- @end

-- Returns the format of a record from its head byte on: `high`, which is the head byte and the bits above the
-- boundary's 48 low bits; those bits; then part, period_us, count and used, or count and used as one number.
-- @fragment record_format(is_long) -> format
format = is_long and '>I2I6I4I6I4I4' or '>I2I6I4'
-- @end

-- Computes the values that the fast paths need for the records of a limit:
-- most: the largest use in a record; high_now: the `high` of a boundary at now; counts: the number that count adds to the
-- use; long_us: the period, if the record is long; format and bytes of the record.
-- @fragment record_shape(name, burst, d, count, period_us, code) -> most, high_now, counts, long_us, format, bytes
local is_long
-- @inline has_long_records(burst, d, count, code) -> is_long
-- @inline record_format(is_long) -> format
high_now = name * 4096 + now_high
if is_long then
    high_now = high_now + 256
    counts = 0
    long_us = period_us
    bytes = 26
else
    high_now = high_now + code * 16
    counts = count * 65536
    long_us = false
    bytes = 12
    if most > 65535 then
        most = 65535
    end
end
-- @end

-- Reads the level of now from a record. `is_steady` becomes false if the fast paths cannot decide: the record belongs
-- to another limit, was written under other parameters or has a life, or its boundary lies ahead of now.
-- @fragment read_level(value, from, format, high_now, most, n, d, count, counts, long_us) -> used, drained, is_steady
local high, low, third, period_then_us, count_then, in_use = unpack_record(format, value, from)
local parts = now_low - low
-- `high` may differ in the bits of the instant. Any other difference means another limit, kind or code.
if high ~= high_now then
    local above = high - high_now + now_high
    is_steady = is_steady and above >= 0 and above <= 15
    parts = parts + (high_now - high) * 281474976710656
end
if long_us then
    parts = parts * d - third
    is_steady = is_steady and period_then_us == long_us and count_then == count and parts < 9007199254740736
else
    -- If the record has another count, the rest is out of bounds, and is rejected below.
    in_use = third - counts
end
if parts < 0 or in_use < 0 or in_use > most then
    is_steady = false
end
-- @inline drain(parts, n) -> used, drained
used = in_use - used
if used <= 0 then
    used, drained = 0, 0
end
-- @end

-- Packs a level into a record, and computes the us until it is empty.
-- @fragment pack_level(used, drained, format, high_now, n, d, count, counts, long_us) -> record, until_us
local high, low, part = high_now, now_low - drained, 0
-- The record stores whole microseconds: the boundary rounds down, and `part` has the difference.
if d > 1 then
    local whole_us = math.ceil(drained / d)
    low, part = now_low - whole_us, whole_us * d - drained
end
if low < 0 then
    high, low = high - 1, low + 281474976710656
elseif low >= 281474976710656 then
    high, low = high + 1, low - 281474976710656
end
until_us = used * n - drained
if long_us then
    record = pack_record(format, high, low, part, long_us, count, used)
    until_us = until_us / d
else
    record = pack_record(format, high, low, counts + used)
end
-- @end

-- Lowers a level to another one if that is less: fewer tokens, or as many tokens of which more has drained.
-- @fragment lower_to(other_used, other_drained) -> level_used, level_drained
if other_used < level_used or other_used == level_used and other_drained > level_drained then
    level_used, level_drained = other_used, other_drained
end
-- @end

-- Raises a level to another one if that is more.
-- @fragment raise_to(other_used, other_drained) -> level_used, level_drained
if other_used > level_used or other_used == level_used and other_drained < level_drained then
    level_used, level_drained = other_used, other_drained
end
-- @end

-- Subtracts a level. A boundary ahead of now stays ahead. Otherwise the rest began to drain a token earlier.
-- @fragment subtract(by_used, by_drained, n) -> level_used, level_drained
if by_used < level_used or by_used == level_used and by_drained > level_drained then
    local was_ahead = level_drained < 0
    level_used, level_drained = level_used - by_used, level_drained - by_drained
    if level_drained < 0 and not was_ahead then
        level_used, level_drained = level_used + 1, level_drained + n
    end
else
    level_used, level_drained = 0, 0
end
-- @end

-- Records a level just before a write. A level only falls between two writes, so this is the lowest since the
-- last one. `span` is the time in which a full bucket refills.
-- @fragment note_low(used, drained, span) -> span_us, low_used, low_drained, before_used, before_drained,
--     floor_used, floor_drained, floor_before_used, floor_before_drained
-- Lows are kept for two spans, the current and the one before: an older charge has drained completely.
local since = now - span_us
if since < span then
    -- @inline lower_to(used, drained) -> low_used, low_drained
    -- @inline lower_to(used, drained) -> floor_used, floor_drained
else
    if since < 2 * span then
        span_us, before_used, before_drained = span_us + span, low_used, low_drained
        floor_before_used, floor_before_drained = floor_used, floor_drained
    else
        span_us, before_used, before_drained = now, used, drained
        floor_before_used, floor_before_drained = used, drained
    end
    low_used, low_drained, floor_used, floor_drained = used, drained, used, drained
end
-- @end

-- Computes the refund of a charge: the tokens that would be free now had `unused` tokens of it never been
-- charged. `most` is the rest of the charge by its age. Since the charge, the level was never below the lows,
-- nor below the floors less the refunds since then.
-- @fragment returnable(most_used, most_drained, unused, at_us, mark, n, span, span_us, low_used, low_drained,
--     before_used, before_drained, floor_used, floor_drained, floor_before_used, floor_before_drained, returned) ->
--     back_used, back_drained
back_used, back_drained = most_used, most_drained
if at_us >= span_us or at_us + span >= span_us then
    if at_us < span_us then
        -- @inline lower_to(before_used, before_drained) -> low_used, low_drained
        -- @inline lower_to(floor_before_used, floor_before_drained) -> floor_used, floor_drained
    end
    local since = returned > mark and returned - mark or 0
    -- @inline subtract(since, 0, n) -> floor_used, floor_drained
    -- @inline raise_to(low_used, low_drained) -> back_used, back_drained
    -- @inline raise_to(floor_used, floor_drained) -> back_used, back_drained
end
-- @inline lower_to(unused, 0) -> back_used, back_drained
-- @end

-- Refunds what returnable() allows, at most the level.
-- @fragment refund(back_used, back_drained, n) -> used, drained, low_used, low_drained, before_used, before_drained,
--     returned
-- @inline subtract(back_used, back_drained, n) -> used, drained
-- @inline subtract(back_used, back_drained, n) -> low_used, low_drained
-- @inline subtract(back_used, back_drained, n) -> before_used, before_drained
returned = returned + back_used
-- @end

-- Reads a level that is stored as the us until it is empty.
-- @fragment level_of_us(us, n) -> used, drained
drained = -us % n
used = (us + drained) / n
-- @end

-- @fragment unpack_life(value, from, n) -> incarnation, burst, span_us, low_used, low_drained, before_used,
--     before_drained, floor_used, floor_drained, floor_before_used, floor_before_drained, returned
local low_us, before_us, floor_us, floor_before_us
incarnation, burst, span_us, low_us, before_us, floor_us, floor_before_us, returned =
    unpack_record('>I6I4I7I7I7I7I7I6', value, from)
-- @inline level_of_us(low_us, n) -> low_used, low_drained
-- @inline level_of_us(before_us, n) -> before_used, before_drained
-- @inline level_of_us(floor_us, n) -> floor_used, floor_drained
-- @inline level_of_us(floor_before_us, n) -> floor_before_used, floor_before_drained
-- @end

-- @fragment pack_life(incarnation, burst, span_us, low_used, low_drained, before_used, before_drained, floor_used,
--     floor_drained, floor_before_used, floor_before_drained, returned, n) -> life
life = pack_record('>I6I4I7I7I7I7I7I6', incarnation, burst, span_us, low_used * n - low_drained,
    before_used * n - before_drained, floor_used * n - floor_drained,
    floor_before_used * n - floor_before_drained, returned)
-- @end
