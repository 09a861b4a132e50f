-- Sliding window: prev * (P - e) + curr * P <= count * P, without rounding.
--
-- The same as sliding_window.rs, name by name: the counts of the window of now and of the one
-- before it. `weight` is what the latter still weighs, rounded up, which for whole costs is as good
-- as the products. State of another period is judged by that period until it is charged.
--
-- Numbers: count, period_us
-- Reply:   prev, curr, elapsed_us (negative while the window lies ahead of now), period_us
-- Body:    start, period_us, prev, curr, incarnation

local KIND = 4

local function numbers(program, i)
    return { count = program[i], period_us = program[i + 1] }, i + 2
end

-- How much of the current window is left; all of it while it lies ahead of now.
local function left_us(cell)
    return cell.period_us - math.max(0, now - cell.start_us)
end

local function weigh(cell)
    cell.weight = 0
    if cell.prev > 0 then
        local whole, rest = mul_div(cell.prev, left_us(cell), cell.period_us)
        cell.weight = whole + (rest > 0 and 1 or 0)
    end
end

-- Makes it `used` in the limit's window that contains an instant, nothing before it.
local function begin(cell, limit, at_us, used)
    cell.start_us, cell.period_us = at_us - at_us % limit.period_us, limit.period_us
    cell.prev, cell.weight, cell.curr, cell.incarnation = 0, 0, math.min(used, 4294967295), 0
    return cell
end

-- The counts of a window that has begun, as they are now.
local function aged(limit, start_us, period_us, prev, curr, incarnation)
    if now >= start_us + period_us then
        start_us, prev, curr = start_us + period_us, curr, 0
        if prev == 0 or now >= start_us + period_us then
            return begin({}, limit, now, 0)
        end
    end
    local cell = {
        start_us = start_us, period_us = period_us, prev = prev, curr = curr,
        incarnation = incarnation,
    }
    weigh(cell)
    return cell
end

local function load(value, kind, at, limit)
    if not at then
        return begin({}, limit, now, 0)
    end
    local high, low, period_us, prev, curr, incarnation =
        struct.unpack('>I1I6I6I4I4I6', value, at)
    local start_us = high * 281474976710656 + low
    if start_us - now > math.min(1000000, 2 * limit.period_us) then
        return begin({ rebased = true }, limit, now, prev + curr)
    end
    return aged(limit, start_us, period_us, prev, curr, incarnation)
end

-- Windows of which nothing is known, used up at an instant.
local function used_up(limit, at_us)
    local period_us = limit.period_us
    return aged(limit, at_us - at_us % period_us, period_us, 0, limit.count, 0)
end

local function has_room(cell, limit, cost)
    return cell.curr + cell.weight + cost <= limit.count
end

local function charge(cell, limit, cost)
    if cell.period_us ~= limit.period_us then
        begin(cell, limit, math.max(now, cell.start_us), cell.curr + cell.weight)
    end
    cell.curr = cell.curr + cost
end

local function force(cell, limit, cost)
    cost = math.min(cost, 2 * limit.count - cell.curr - cell.weight)
    if cost > 0 then
        charge(cell, limit, cost)
    end
end

local function receipt(cell, limit, cost, nonce)
    if cell.incarnation == 0 then
        cell.incarnation = nonce
    end
    return cell.incarnation
end

-- Lowers the counts; how much less is used now, nothing where nothing changed.
local function lower(cell, limit, prev, curr)
    if prev == cell.prev and curr == cell.curr then
        return
    end
    local used = cell.curr + cell.weight
    cell.prev, cell.curr = prev, curr
    if prev == 0 and curr == 0 then
        begin(cell, limit, now, 0)
    end
    weigh(cell)
    return used - cell.curr - cell.weight
end

-- Takes `unused` of a charge off the window that it was charged in.
local function give_back(cell, limit, incarnation, at_us, amount, slot, unused)
    if incarnation == 0 or incarnation ~= cell.incarnation or now < at_us then
        return
    end
    if at_us >= cell.start_us then
        return lower(cell, limit, cell.prev, math.max(0, cell.curr - unused))
    elseif at_us + cell.period_us >= cell.start_us then
        return lower(cell, limit, math.max(0, cell.prev - unused), cell.curr)
    end
end

-- Lowers what is used now: the current window first, then the one before to the largest count that
-- weighs so much less.
local function lower_by(cell, limit, amount)
    if amount <= cell.curr then
        return lower(cell, limit, cell.prev, cell.curr - amount)
    end
    local weight = math.max(0, cell.weight - (amount - cell.curr))
    local prev = mul_div(weight, cell.period_us, left_us(cell))
    return lower(cell, limit, math.min(cell.prev, prev), 0)
end

local function reply(cell, limit, cost, out, i)
    out[i], out[i + 1], out[i + 2], out[i + 3] =
        cell.prev, cell.curr, now - cell.start_us, cell.period_us
    return i + 4
end

-- The record's kind and body, and the us until it is untouched; nothing once it is.
local function pack(cell, limit)
    if cell.prev == 0 and cell.curr == 0 then
        return
    end
    local low = cell.start_us % 281474976710656
    local body = struct.pack('>I1I6I6I4I4I6', (cell.start_us - low) / 281474976710656, low,
        cell.period_us, cell.prev, cell.curr, cell.incarnation)
    return KIND, body, cell.start_us - now + (cell.curr > 0 and 2 or 1) * cell.period_us
end

-- Us until a record is untouched.
local function until_us(value, kind, at)
    local high, low, period_us, prev, curr = struct.unpack('>I1I6I6I4I4', value, at)
    return high * 281474976710656 + low - now + (curr > 0 and 2 or 1) * period_us
end

return {
    width = 4, numbers = numbers, until_us = until_us, load = load, used_up = used_up, has_room = has_room,
    charge = charge, force = force, receipt = receipt, give_back = give_back, lower_by = lower_by,
    reply = reply, pack = pack,
}
