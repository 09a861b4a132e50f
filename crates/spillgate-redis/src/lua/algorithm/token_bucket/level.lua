-- The formulas of a token bucket's levels and records, as fragments for token_bucket.lua and the fast paths:
-- single_charge.lua, bucket_loop.lua and bucket_reservation.lua.
--
-- They use `now`, its 48 low bits `now_low`, the bits above them, `now_high`, and `nonce`. They keep no other state.

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
-- @fragment record_format(is_long) -> format, bytes
format, bytes = '>I2I6I4', 12
if is_long then
    format, bytes = '>I2I6I4I6I4I4', 26
end
-- @end

-- Computes the values that the fast paths need for the records of a limit:
-- most: the largest use in a record; high_now: the `high` of a boundary at now; counts: the number that count adds to
-- the use; long_us: the period, if the record is long; format and bytes of the record.
-- @fragment record_shape(name, burst, d, count, period_us, code) -> most, high_now, counts, long_us, format, bytes
local is_long
-- @inline has_long_records(burst, d, count, code) -> is_long
-- @inline record_format(is_long) -> format, bytes
high_now = name * 4096 + now_high
if is_long then
    high_now = high_now + 256
    counts = 0
    long_us = period_us
else
    high_now = high_now + code * 16
    counts = count * 65536
    long_us = false
    if most > 65535 then
        most = 65535
    end
end
-- @end

-- Reads the level of now from a record. `is_steady` becomes false if the fast paths cannot decide: the record belongs
-- to another limit, was written under other parameters or is of another kind, or its boundary lies ahead of now.
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

-- The end of a record with receipts.
-- @fragment pack_receipts(incarnation, mark, lowest) -> text
text = pack_record('>I6I6I4', incarnation, mark, lowest)
-- @end

-- @fragment unpack_receipts(value, from) -> incarnation, mark, lowest
incarnation, mark, lowest = unpack_record('>I6I6I4', value, from)
-- @end

-- Returns the tokens of a level that are whole.
-- @fragment whole_tokens(used, drained) -> tokens
tokens = used
if drained > 0 then
    tokens = used - 1
end
-- @end

-- Records a level just before a charge: since the last write it has only fallen.
-- @fragment note_low(used, drained) -> lowest
local tokens
-- @inline whole_tokens(used, drained) -> tokens
if tokens < lowest then
    lowest = tokens
end
-- @end

-- Prepares a bucket for a receipt, just after its charge: names an incarnation, and begins the low again if more than
-- five quarters of it are in use. For earlier charges it then proves nothing.
-- @fragment begin_receipt(used, drained) -> incarnation, mark, lowest
if incarnation == 0 then
    incarnation, mark, lowest = nonce, 0, 0
end
local tokens
-- @inline whole_tokens(used, drained) -> tokens
if 4 * tokens > 5 * lowest then
    mark, lowest = mark + tokens, tokens
end
-- @end

-- Returns the tokens that would surely be free now had `unused` tokens of a charge never been charged: what is left of
-- the charge by its age, or what the low proves if that is more. Of the charge, `tokens` and the part `rest` have
-- drained.
-- @fragment returnable(amount, tokens, rest, unused, marked, mark, lowest) -> back_used, back_drained
back_used, back_drained = amount - tokens, rest
if back_used <= 0 then
    back_used, back_drained = 0, 0
end
local proven = mark >= marked and lowest - (mark - marked) or 0
if proven >= back_used then
    back_used, back_drained = proven, 0
end
if back_used > unused then
    back_used, back_drained = unused, 0
end
-- @end

-- Takes a level out of another, at most all of it; `by` becomes the level that was taken out.
-- @fragment take_out(n) -> used, drained, mark, by_used, by_drained
if used < by_used or used == by_used and drained > by_drained then
    by_used, by_drained = used, drained
end
local is_ahead = drained < 0
-- The boundary lies ahead of now, so no part of a token has drained: only whole tokens can be taken out.
if is_ahead then
    -- @inline whole_tokens(by_used, by_drained) -> by_used
    by_drained = 0
end
used, drained, mark = used - by_used, drained - by_drained, mark + by_used
-- The rest began to drain a token earlier. A boundary ahead of now stays ahead.
if drained < 0 and not is_ahead then
    used, drained = used + 1, drained + n
end
-- @end
