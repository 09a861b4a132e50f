-- Token bucket: in any interval L, admitted <= burst + floor(L * rate).
--
-- The same as token_bucket.rs, name by name: whole used tokens, and the boundary at which the first
-- of them began to drain, in parts of 1/d us. `drained` is below n, or negative for as long as a
-- boundary lies ahead of now.
--
-- Numbers: burst, forced_max, n, d, count, period_us, code (of the period, 0 if it has none)
-- Reply:   used, drained, gone_after_us (-1: written under these very numbers)
-- Bodies:  kind 0: code * 16 + boundary, count, used
--          kind 7: code * 16 + boundary, part, count, used; of small counts that leave parts
--          kind 1: boundary, part, period_us, count, used
--          kind 2: as 1; incarnation, burst, span, low, low_before
--          kind 8: as 2; floor, floor_before, returned
--          kind 9: as 0; incarnation, burst, span, low, low_before, floor, floor_before, each level as the us until
--                  it is none, returned

local SHORT, LONG, TRACKED, PART, FLOORED, WHOLE = 0, 1, 2, 7, 8, 9

local function numbers(program, i)
    return {
        burst = program[i], forced_max = program[i + 1], n = program[i + 2], d = program[i + 3],
        count = program[i + 4], period_us = program[i + 5], code = program[i + 6],
        -- The driver's, here so that the table is made in its full size.
        algorithm = 0, module = 0, name = 0, long_name = 0,
    }, i + 7
end

-- What a period's code in a short body stands for.
local function coded_period_us(code)
    local seconds = {
        1, 10, 30, 60, 300, 600, 900, 3600, 43200, 86400, 604800, 2592000, 31536000,
    }
    return seconds[code] * 1000000
end

-- Parts that drained since the boundary, as whole tokens and the rest; tokens end at `most`.
local function drained_since(boundary_us, part, n, d, most)
    local elapsed = now - boundary_us
    if elapsed * d < 9007199254740992 then
        local parts = elapsed * d - part
        local rest = parts % n
        return (parts - rest) / n, rest
    end
    if elapsed / n * d > most * 1.001 + 1 then
        return most, 0
    end
    local tokens, rest = mul_div(elapsed, d, n)
    if rest < part then
        return tokens - 1, rest - part + n
    end
    return tokens, rest - part
end

-- The instant `parts` of 1/d us before now: whole us and parts.
local function before(parts, d)
    if d == 1 then
        return now - parts, 0
    end
    local whole = math.ceil(parts / d)
    return now - whole, whole * d - parts
end

-- A bucket that nobody has touched, made in its full size.
local function new_cell()
    return {
        used = 0, drained = 0, boundary_us = now, part = 0,
        body = false, fits = false, changed = false, tracked = false,
    }
end

local function untouched(cell)
    cell.used, cell.drained, cell.boundary_us, cell.part = 0, 0, now, 0
    cell.gone_after_us, cell.tracked = nil, false
    return cell
end

local function drain(cell, used, boundary_us, part, limit)
    if used > limit.forced_max then
        used = limit.forced_max
    end
    if cell.tracked and cell.tracked.burst ~= limit.burst then
        cell.tracked = false
    end
    if now <= boundary_us then
        local ahead_us = boundary_us - now
        local tolerated = ahead_us <= 1000000
        if tolerated and limit.burst * (limit.n / limit.d) < 1000002 then
            tolerated = ahead_us <= math.min(1000000, math.ceil(limit.burst * limit.n / limit.d))
        end
        if not tolerated then
            untouched(cell)
            cell.used, cell.rebased = used, true
            return cell
        end
        cell.used, cell.drained = used, -(ahead_us * limit.d + part)
        cell.boundary_us, cell.part = boundary_us, part
        return cell
    end
    local tokens, rest = drained_since(boundary_us, part, limit.n, limit.d, used)
    if tokens >= used then
        return untouched(cell)
    end
    cell.used, cell.drained = used - tokens, rest
    cell.boundary_us, cell.part = before(rest, limit.d)
    return cell
end

-- State written under other numbers drains at the new rate, and is gone at the latest when it
-- would have been under its own.
local function convert(cell, used, boundary_us, part, count, period_us, limit)
    local whole, rest = mul_div(period_us, used, count)
    local begun = part > 0 and 1 or 0
    local gone_after_us = whole + (rest > 0 and 1 or 0) + begun - (now - boundary_us)
    cell.tracked = false
    drain(cell, used, boundary_us + begun, 0, limit)
    if gone_after_us <= 0 then
        cell.rebased = nil
        return untouched(cell)
    end
    if not cell.rebased and cell.used > 0 then
        cell.gone_after_us = gone_after_us
    end
    return cell
end

-- A short body: code, boundary_us, part, count, used.
local function short(value, kind, at)
    local high, low, part, count, used
    if kind == SHORT or kind == WHOLE then
        high, low, count, used = struct.unpack('>I1I6I2I2', value, at)
        part = 0
    else
        high, low, part, count, used = struct.unpack('>I1I6I1I1I2', value, at)
    end
    local code = math.floor(high / 16)
    return code, (high - code * 16) * 281474976710656 + low, part, count, used
end

-- A level of so many us: used, drained.
local function level(us, n)
    local drained = -us % n
    return (us + drained) / n, drained
end

-- A bucket's life behind a body of whole us.
local function whole_life(value, at, n)
    local t, low, before, floor_us, floor_before = {}
    t.incarnation, t.burst, t.span_us, low, before, floor_us, floor_before, t.returned =
        struct.unpack('>I6I4I7I7I7I7I7I6', value, at)
    t.low_used, t.low_drained = level(low, n)
    t.before_used, t.before_drained = level(before, n)
    t.floor_used, t.floor_drained = level(floor_us, n)
    t.floor_before_used, t.floor_before_drained = level(floor_before, n)
    return t
end

local function load(value, kind, at, limit)
    local cell = new_cell()
    if not at then
        return cell
    end
    if kind == SHORT or kind == PART or kind == WHOLE then
        local code, boundary_us, part, count, used = short(value, kind, at)
        if kind == WHOLE and count == limit.count and code == limit.code then
            cell.tracked = whole_life(value, at + 11, limit.n)
        end
        if count == limit.count and code == limit.code then
            return drain(cell, used, boundary_us, part, limit)
        end
        return convert(cell, used, boundary_us, part, count, coded_period_us(code), limit)
    end
    local high, low, part, period_us, count, used = struct.unpack('>I1I6I4I6I4I4', value, at)
    local boundary_us = high * 281474976710656 + low
    if kind == TRACKED or kind == FLOORED then
        local t = {}
        t.incarnation, t.burst, high, low, t.low_used, t.low_drained, t.before_used, t.before_drained =
            struct.unpack('>I6I4I1I6I4I6I4I6', value, at + 25)
        t.span_us = high * 281474976710656 + low
        if kind == FLOORED then
            t.floor_used, t.floor_drained, t.floor_before_used, t.floor_before_drained, t.returned =
                struct.unpack('>I4I6I4I6I6', value, at + 62)
        else
            t.floor_used, t.floor_drained, t.returned = t.low_used, t.low_drained, 0
            t.floor_before_used, t.floor_before_drained = t.before_used, t.before_drained
        end
        cell.tracked = t
    end
    if count == limit.count and period_us == limit.period_us then
        return drain(cell, used, boundary_us, part, limit)
    end
    return convert(cell, used, boundary_us, part, count, period_us, limit)
end

-- A bucket of which nothing is known, used up at an instant.
local function used_up(limit, at_us)
    return drain(new_cell(), limit.burst, at_us, 0, limit)
end

-- A level is less than another with fewer tokens, or as many of which more has drained.
local function less(used, drained, other_used, other_drained)
    return used < other_used or (used == other_used and drained > other_drained)
end

-- A level lowered by another: used, drained.
local function lowered(used, drained, by_used, by_drained, n)
    if not less(by_used, by_drained, used, drained) then
        return 0, 0
    end
    local left_used, left_drained = used - by_used, drained - by_drained
    if drained >= 0 and left_drained < 0 then
        return left_used + 1, left_drained + n
    end
    return left_used, left_drained
end

local function refill_us(limit)
    local whole, rest = mul_div(limit.n, limit.burst, limit.d)
    return whole + (rest > 0 and 1 or 0)
end

-- The level only falls between two writes, so its low is the level just before a write.
local function note_low(cell, limit)
    local t = cell.tracked
    if not t then
        return
    end
    local span = refill_us(limit)
    local since = math.max(0, now - t.span_us)
    local used, drained = cell.used, math.max(0, cell.drained)
    if since < span then
        if less(used, drained, t.low_used, t.low_drained) then
            t.low_used, t.low_drained = used, drained
        end
        if less(used, drained, t.floor_used, t.floor_drained) then
            t.floor_used, t.floor_drained = used, drained
        end
        return
    end
    if since < 2 * span then
        t.before_used, t.before_drained = t.low_used, t.low_drained
        t.floor_before_used, t.floor_before_drained = t.floor_used, t.floor_drained
        t.span_us = t.span_us + span
    else
        t.before_used, t.before_drained = used, drained
        t.floor_before_used, t.floor_before_drained = used, drained
        t.span_us = now
    end
    t.low_used, t.low_drained, t.floor_used, t.floor_drained = used, drained, used, drained
end

local function has_room(cell, limit, cost)
    return cell.used + cost <= limit.burst
end

local function charge(cell, limit, cost)
    if cell.tracked then
        note_low(cell, limit)
    end
    cell.gone_after_us = nil
    cell.used = cell.used + cost
end

local function force(cell, limit, cost)
    local forced = math.min(cell.used + cost, limit.forced_max)
    charge(cell, limit, math.max(0, forced - cell.used))
end

local function receipt(cell, limit, cost, nonce)
    local t = cell.tracked
    if not t then
        local drained = math.max(0, cell.drained)
        t = {
            incarnation = nonce, burst = limit.burst, span_us = now,
            low_used = cell.used, low_drained = drained,
            before_used = cell.used, before_drained = drained,
            floor_used = cell.used, floor_drained = drained,
            floor_before_used = cell.used, floor_before_drained = drained, returned = 0,
        }
        cell.tracked = t
    end
    return t.incarnation
end

-- What had come back before a receipt: it goes with it.
local function mark(cell)
    return cell.tracked.returned
end

-- The lowest that the level would have been since a charge, had what came back since never been charged:
-- used, drained.
local function low_since(t, limit, at_us, mark_then)
    if at_us < t.span_us and at_us + refill_us(limit) < t.span_us then
        return 0, 0
    end
    local low_used, low_drained = t.low_used, t.low_drained
    local floor_used, floor_drained = t.floor_used, t.floor_drained
    if at_us < t.span_us then
        if less(t.before_used, t.before_drained, low_used, low_drained) then
            low_used, low_drained = t.before_used, t.before_drained
        end
        if less(t.floor_before_used, t.floor_before_drained, floor_used, floor_drained) then
            floor_used, floor_drained = t.floor_before_used, t.floor_before_drained
        end
    end
    local since = math.max(0, t.returned - mark_then)
    floor_used, floor_drained = lowered(floor_used, floor_drained, since, 0, limit.n)
    if less(low_used, low_drained, floor_used, floor_drained) then
        return floor_used, floor_drained
    end
    return low_used, low_drained
end

-- What would be free now had `unused` tokens of a charge never been charged: used, drained.
local function returnable(cell, limit, incarnation, at_us, amount, mark_then, unused)
    local t = cell.tracked
    if not t or t.incarnation ~= incarnation or now < at_us then
        return 0, 0
    end
    local used, drained = 0, 0
    if now == at_us then
        used = amount
    else
        local tokens, rest = drained_since(at_us, 0, limit.n, limit.d, amount)
        if tokens < amount then
            used, drained = amount - tokens, rest
        end
    end
    local low_used, low_drained = low_since(t, limit, at_us, mark_then)
    if less(used, drained, low_used, low_drained) then
        used, drained = low_used, low_drained
    end
    if less(unused, 0, used, drained) then
        return unused, 0
    end
    return used, drained
end

-- Gives back at most `used` tokens less `drained` parts; the whole tokens that came back, nothing
-- where nothing changed.
local function lower(cell, limit, used, drained)
    if less(cell.used, cell.drained, used, drained) then
        used, drained = cell.used, cell.drained
    end
    if cell.drained < 0 then
        used, drained = used - (drained > 0 and 1 or 0), 0
    end
    if used == 0 then
        return
    end
    cell.gone_after_us = nil
    cell.used, cell.drained = lowered(cell.used, cell.drained, used, drained, limit.n)
    if cell.used == 0 then
        untouched(cell)
    elseif cell.drained >= 0 then
        cell.boundary_us, cell.part = before(cell.drained, limit.d)
    end
    local t = cell.tracked
    if t then
        t.low_used, t.low_drained = lowered(t.low_used, t.low_drained, used, drained, limit.n)
        t.before_used, t.before_drained =
            lowered(t.before_used, t.before_drained, used, drained, limit.n)
        t.returned = t.returned + used
    end
    return used - (drained > 0 and 1 or 0)
end

local function give_back(cell, limit, incarnation, at_us, amount, slot, unused)
    note_low(cell, limit)
    return lower(cell, limit, returnable(cell, limit, incarnation, at_us, amount, slot, unused))
end

local function lower_by(cell, limit, amount)
    note_low(cell, limit)
    return lower(cell, limit, amount, 0)
end

local function reply(cell, limit, cost, out, i)
    out[i], out[i + 1], out[i + 2] = cell.used, cell.drained, cell.gone_after_us or -1
    return i + 3
end

-- The record's kind and body, and the us until it is untouched; nothing once it is.
local function pack(cell, limit)
    local used = cell.used
    if used == 0 then
        return
    end
    local until_us = (used * limit.n - cell.drained) / limit.d
    local low = cell.boundary_us % 281474976710656
    local high = (cell.boundary_us - low) / 281474976710656
    local t = cell.tracked
    local n = limit.n
    if t and limit.code > 0 and limit.d == 1 and limit.count < 65536 and used < 65536 then
        return WHOLE, struct.pack('>I1I6I2I2I6I4I7I7I7I7I7I6', limit.code * 16 + high, low, limit.count, used,
            t.incarnation, t.burst, t.span_us, t.low_used * n - t.low_drained, t.before_used * n - t.before_drained,
            t.floor_used * n - t.floor_drained, t.floor_before_used * n - t.floor_before_drained, t.returned), until_us
    elseif not t and limit.code > 0 and used < 65536 then
        high = limit.code * 16 + high
        if limit.d == 1 and limit.count < 65536 then
            return SHORT, struct.pack('>I1I6I2I2', high, low, limit.count, used), until_us
        elseif limit.count < 256 then
            return PART, struct.pack('>I1I6I1I1I2', high, low, cell.part, limit.count, used), until_us
        end
        high = high - limit.code * 16
    end
    local body = struct.pack('>I1I6I4I6I4I4', high, low, cell.part, limit.period_us, limit.count, used)
    if not t then
        return LONG, body, until_us
    end
    local span_low = t.span_us % 281474976710656
    return FLOORED, body .. struct.pack('>I6I4I1I6I4I6I4I6I4I6I4I6I6', t.incarnation, t.burst,
        (t.span_us - span_low) / 281474976710656, span_low,
        t.low_used, t.low_drained, t.before_used, t.before_drained,
        t.floor_used, t.floor_drained, t.floor_before_used, t.floor_before_drained, t.returned), until_us
end

-- Us until a record is untouched by the numbers it was written under.
local function until_us(value, kind, at)
    if kind == SHORT or kind == PART or kind == WHOLE then
        local code, boundary_us, part, count, used = short(value, kind, at)
        return boundary_us - now + 1 + used * coded_period_us(code) / count
    end
    local high, low, part, period_us, count, used = struct.unpack('>I1I6I4I6I4I4', value, at)
    return high * 281474976710656 + low - now + used * period_us / count
end

return {
    width = 3, numbers = numbers, until_us = until_us, load = load, used_up = used_up, has_room = has_room, charge = charge, force = force,
    receipt = receipt, mark = mark, give_back = give_back, lower_by = lower_by, reply = reply, pack = pack,
}
