-- Concurrency: slots held and not expired <= count.
--
-- The same as concurrency.rs, name by name. A hold is named by the nonce of the call that took it
-- and its position in that call's program. It is stored as pieces, the powers of two that its
-- weight is made of, so that what is held is a count or two of a range and never a walk:
-- O(log n) for each size of piece in use, and calls of cost 1 use one size.
--
-- Numbers: count, hold_us
-- Reply:   held, retry_after_us (-1: never), reset_after_us
-- Bodies:  kind 6: last, shift, latest, pieces (expired ones too), sizes (their sum, each once)
-- Own key: a sorted set of pieces: nonce, position, exponent of the size; scored by size and end

local HELD = 6
-- A piece of size 2^k scores between 2^(52 + k) and 2^(53 + k), so that each size has a range of
-- its own; exact for every end before 2^52 us, in the year 2112.
local ENDS = 4503599627370496
-- More than one, so that expired pieces get fewer; few, so that taking a slot stays cheap.
local FORGOTTEN_MOST = 64

local function numbers(program, i)
    return { count = program[i], hold_us = program[i + 1] }, i + 2
end

-- Iterates over the powers of two that a number is made of: `for size in next_size, number, 0.5`.
local function next_size(number, size)
    size = size * 2
    while size <= number do
        if number % (size * 2) >= size then
            return size
        end
        size = size * 2
    end
end

local function contains(number, size)
    return number % (size * 2) >= size
end

local function piece(incarnation, slot, size)
    local _, exponent = math.frexp(size)
    return struct.pack('>I6I4I1', incarnation, slot, exponent)
end

-- Nothing held; expired pieces go with the whole key.
local function untouched(cell)
    cell.held, cell.pieces, cell.expired, cell.sizes = 0, 0, 0, 0
    cell.clock_us, cell.shift_us, cell.ahead_us, cell.last_us, cell.latest_us = now, 0, 0, 0, 0
    cell.rebased = nil
    return cell
end

local function load(value, kind, at, limit, own_key)
    local cell = { own_key = own_key }
    if not at then
        return untouched(cell)
    end
    local last_us, shift_us, latest_us, pieces, sizes = struct.unpack('>I7I7I7I4I4', value, at)
    local clock_us = now + shift_us
    local ahead_us = math.max(0, last_us - clock_us)
    if ahead_us > math.min(1000000, limit.hold_us) then
        cell.rebased = true
        shift_us, clock_us, ahead_us = shift_us + ahead_us, last_us, 0
    end
    clock_us = clock_us + ahead_us
    if latest_us <= clock_us then
        return untouched(cell)
    end
    local held, lasting, in_use = 0, 0, 0
    for size in next_size, sizes, 0.5 do
        local count = redis.pcall('ZCOUNT', own_key, (ENDS + clock_us + 1) * size, (ENDS * 2 - 1) * size)
        if type(count) ~= 'number' then
            return
        end
        if count > 0 then
            held, lasting, in_use = held + count * size, lasting + count, in_use + size
        end
    end
    if held == 0 then
        return untouched(cell)
    end
    cell.held, cell.pieces, cell.expired = held, pieces, pieces - lasting
    cell.sizes = pieces > lasting and sizes or in_use
    cell.clock_us, cell.shift_us, cell.ahead_us = clock_us, shift_us, ahead_us
    cell.last_us, cell.latest_us = last_us, latest_us
    return cell
end

local function has_room(cell, limit, cost)
    return cell.held + cost <= limit.count
end

local function put(cell, incarnation, slot, size, end_us)
    redis.call('ZADD', cell.own_key, (ENDS + end_us) * size, piece(incarnation, slot, size))
    cell.pieces = cell.pieces + 1
    if not contains(cell.sizes, size) then
        cell.sizes = cell.sizes + size
    end
end

-- Forgets pieces that have ended: some of them, so that no single call pays for all.
local function forget_ended(cell)
    local most = FORGOTTEN_MOST
    for size in next_size, cell.sizes, 0.5 do
        local ended = redis.call('ZRANGEBYSCORE', cell.own_key,
            ENDS * size, (ENDS + cell.clock_us) * size, 'LIMIT', 0, most)
        if #ended > 0 then
            redis.call('ZREM', cell.own_key, unpack(ended))
            cell.pieces, cell.expired = cell.pieces - #ended, cell.expired - #ended
            most = most - #ended
        end
        if most == 0 or cell.expired == 0 then
            return
        end
    end
end

local function take(cell, limit, weight, slot)
    if cell.held == 0 then
        redis.call('UNLINK', cell.own_key)
        untouched(cell)
    elseif cell.expired > 0 then
        forget_ended(cell)
    end
    local end_us = cell.clock_us + limit.hold_us
    for size in next_size, weight, 0.5 do
        put(cell, nonce, slot, size, end_us)
    end
    cell.held = cell.held + weight
    cell.last_us, cell.latest_us = cell.clock_us, math.max(cell.latest_us, end_us)
end

-- Slots of which nothing is known, all taken at an instant. Nothing is stored of that unless they are
-- changed: see `take_lost`.
local function used_up(limit, at_us, own_key)
    local cell = load(nil, nil, nil, limit, own_key)
    if now - at_us < limit.hold_us then
        cell.held, cell.latest_us, cell.lost_us = limit.count, at_us + limit.hold_us, at_us
    end
    return cell
end

local function take_lost(cell, limit)
    if cell.lost_us then
        local now_us = now
        now, cell.lost_us, cell.held = cell.lost_us, nil, 0
        take(cell, limit, limit.count, 0)
        now, cell.clock_us = now_us, now_us
    end
end

-- A slot is taken with its receipt, which names it.
local function charge()
end

local function receipt(cell, limit, cost, incarnation, slot)
    take(cell, limit, cost, slot)
    return incarnation
end

local function force(cell, limit, cost, slot)
    take_lost(cell, limit)
    local forced = math.min(cost, 2 * limit.count - cell.held)
    if forced > 0 then
        take(cell, limit, forced, slot)
    end
end

-- A hold's weight and end; nothing if it has ended or was released.
local function held_by(cell, incarnation, slot)
    local weight, end_us = 0, 0
    for size in next_size, cell.sizes, 0.5 do
        local score = redis.call('ZSCORE', cell.own_key, piece(incarnation, slot, size))
        if score then
            weight, end_us = weight + size, tonumber(score) / size - ENDS
        end
    end
    if end_us > cell.clock_us then
        return weight, end_us
    end
end

-- The soonest or the last piece that ends after the clock: its end, its name.
local function outermost(cell, size, command, from, to)
    local found = redis.call(command, cell.own_key, from, to, 'WITHSCORES', 'LIMIT', 0, 1)
    if found[1] then
        return tonumber(found[2]) / size - ENDS, found[1]
    end
end

-- When the last hold ends.
local function latest(cell)
    local latest_us = 0
    for size in next_size, cell.sizes, 0.5 do
        local end_us = outermost(cell, size, 'ZREVRANGEBYSCORE',
            (ENDS * 2 - 1) * size, (ENDS + cell.clock_us + 1) * size)
        latest_us = math.max(latest_us, end_us or 0)
    end
    return latest_us
end

-- The hold that ends first: its name. Of two that end at the same instant the smaller name.
local function first(cell)
    local first_us, incarnation, slot
    for size in next_size, cell.sizes, 0.5 do
        local end_us, name = outermost(cell, size, 'ZRANGEBYSCORE',
            (ENDS + cell.clock_us + 1) * size, (ENDS * 2 - 1) * size)
        if end_us and (not first_us or end_us <= first_us) then
            local other, other_slot = struct.unpack('>I6I4', name)
            if not first_us or end_us < first_us or other < incarnation
                or (other == incarnation and other_slot < slot) then
                first_us, incarnation, slot = end_us, other, other_slot
            end
        end
    end
    return incarnation, slot
end

-- Lowers a hold by at most `by`; what came back, nothing where nothing changed.
local function lower(cell, incarnation, slot, by)
    local weight, end_us = held_by(cell, incarnation, slot)
    if not weight or by == 0 then
        return
    end
    by = math.min(by, weight)
    local left = weight - by
    for size in next_size, weight, 0.5 do
        if not contains(left, size) then
            redis.call('ZREM', cell.own_key, piece(incarnation, slot, size))
            cell.pieces = cell.pieces - 1
        end
    end
    for size in next_size, left, 0.5 do
        if not contains(weight, size) then
            put(cell, incarnation, slot, size, end_us)
        end
    end
    cell.held = cell.held - by
    if cell.held == 0 then
        untouched(cell)
    elseif left == 0 and end_us == cell.latest_us then
        cell.latest_us = latest(cell)
    end
    return by
end

local function give_back(cell, limit, incarnation, at_us, amount, slot, unused)
    return lower(cell, incarnation, slot, unused)
end

-- Whatever ends soonest goes first: it is the likeliest to be abandoned. O(log n) for each hold
-- that goes, or for all of them together.
local function lower_by(cell, limit, amount)
    local returned = math.min(amount, cell.held)
    if returned == 0 then
        return
    end
    take_lost(cell, limit)
    if returned == cell.held then
        untouched(cell)
        return returned
    end
    local left = cell.held - returned
    while cell.held > left do
        local incarnation, slot = first(cell)
        lower(cell, incarnation, slot, cell.held - left)
    end
    return returned
end

local function holds(cell, incarnation, slot)
    return held_by(cell, incarnation, slot) ~= nil
end

-- Keeps a slot for so long from now, another hold at most and never shorter than before, if it is still
-- held; when it now ends.
local function renew(cell, limit, incarnation, slot, for_us)
    local weight, end_us = held_by(cell, incarnation, slot)
    if not weight then
        return
    end
    end_us = math.max(end_us, cell.clock_us + math.min(limit.hold_us, for_us))
    for size in next_size, weight, 0.5 do
        redis.call('ZADD', cell.own_key, (ENDS + end_us) * size, piece(incarnation, slot, size))
    end
    cell.last_us, cell.latest_us = cell.clock_us, math.max(cell.latest_us, end_us)
    return end_us - cell.shift_us
end

-- The instant after which no more than `room` is held. By rank if all pieces are of size 1; else
-- by bisection, so that calls of any cost stay within some tens of counts.
local function end_leaving(cell, room)
    if cell.lost_us then
        return cell.latest_us
    end
    if cell.sizes == 1 then
        local found = redis.call('ZREVRANGE', cell.own_key, room, room, 'WITHSCORES')
        return tonumber(found[2]) - ENDS
    end
    local too_soon, late_enough = cell.clock_us, cell.latest_us
    while late_enough - too_soon > 1 do
        local between = math.floor((too_soon + late_enough) / 2)
        local held = 0
        for size in next_size, cell.sizes, 0.5 do
            held = held + size * redis.call('ZCOUNT', cell.own_key, (ENDS + between + 1) * size, (ENDS * 2 - 1) * size)
        end
        if held > room then
            too_soon = between
        else
            late_enough = between
        end
    end
    return late_enough
end

local function reply(cell, limit, cost, out, i)
    local room = limit.count - cost
    local retry_after_us, reset_after_us = 0, 0
    if room < 0 then
        retry_after_us = -1
    elseif cell.held > room then
        retry_after_us = end_leaving(cell, room) - cell.clock_us + cell.ahead_us
    end
    if cell.held > 0 then
        reset_after_us = cell.latest_us - cell.clock_us + cell.ahead_us
    end
    out[i], out[i + 1], out[i + 2] = cell.held, retry_after_us, reset_after_us
    return i + 3
end

-- The record's kind and body, and the us until it is untouched; nothing once it is.
local function pack(cell)
    if cell.held == 0 then
        redis.call('UNLINK', cell.own_key)
        return
    end
    local until_us = cell.latest_us - cell.clock_us + cell.ahead_us
    -- As the driver's, for the key that it does not know.
    local until_ms = until_us / 1000
    redis.call('PEXPIRE', cell.own_key, math.ceil(until_ms + math.max(500, until_ms / 20)))
    return HELD, struct.pack('>I7I7I7I4I4', cell.last_us, cell.shift_us, cell.latest_us, cell.pieces, cell.sizes),
        until_us
end

-- Us until a record is untouched by the numbers it was written under.
local function until_us(value, kind, at)
    local last_us, shift_us, latest_us = struct.unpack('>I7I7I7', value, at)
    -- No longer than after a re-base, which whoever reads it next may make.
    return math.min(latest_us - shift_us - now, latest_us - last_us + 1000000)
end

return {
    width = 3, numbers = numbers, until_us = until_us, load = load, used_up = used_up, has_room = has_room, charge = charge, force = force,
    receipt = receipt, give_back = give_back, lower_by = lower_by, holds = holds, renew = renew, reply = reply, pack = pack,
}
