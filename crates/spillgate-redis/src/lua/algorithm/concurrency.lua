-- Concurrency: permits held and not expired <= count.
--
-- Mirrors concurrency.rs. A charge of cost c is one hold of weight c, named by the nonce of its call and its position
-- in the reply. It is stored as pieces, one for each power of two in its weight. The permits held are then one or a
-- few counts of a range, never a walk: O(log n) for each size of piece in use, and calls of cost 1 use one size.
--
-- Parameters: count, hold_us
-- Reply:   held, retry_after_us (-1: never), reset_after_us
-- Bodies:  kind 2: last, shift, latest, pieces (expired ones too), sizes (their sum, each once)
-- Own key: a sorted set of pieces: nonce, position, exponent of the size; scored by size and end

local HELD = 2
-- A piece of size 2^k scores between 2^(52 + k) and 2^(53 + k), so each size has a range of its own. Exact
-- for every end before 2^52 us, in the year 2112.
local ENDS = 4503599627370496
-- Expired pieces deleted by one call: more than one, so that their number falls; few, so that taking a permit
-- stays cheap.
local FORGOTTEN_MOST = 64

local function params(program, i)
    return { count = program[i], hold_us = program[i + 1] }, i + 2
end

-- Iterates over the powers of two in a number: `for size in next_size, number, 0.5`.
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
    return pack_record('>I6I4I1', incarnation, slot, exponent)
end

-- Resets to no holds. Expired pieces are deleted with the whole key.
local function untouched(self)
    self.held, self.pieces, self.expired, self.sizes = 0, 0, 0, 0
    self.clock_us, self.shift_us, self.ahead_us, self.last_us, self.latest_us = now, 0, 0, 0, 0
    self.rebased = nil
    return self
end

local function load(value, kind, at, limit, own_key)
    local self = { own_key = own_key }
    if not at then
        return untouched(self)
    end
    local last_us, shift_us, latest_us, pieces, sizes = unpack_record('>I7I7I7I4I4', value, at)
    local clock_us = now + shift_us
    -- The clock stepped back. A small step is tolerated; a larger one shifts the log of holds.
    local ahead_us = max(0, last_us - clock_us)
    if ahead_us > min(1000000, limit.hold_us) then
        self.rebased = true
        shift_us, clock_us, ahead_us = shift_us + ahead_us, last_us, 0
    end
    clock_us = clock_us + ahead_us
    -- Every hold has expired, so the set need not be counted.
    if latest_us <= clock_us then
        return untouched(self)
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
        return untouched(self)
    end
    self.held, self.pieces, self.expired = held, pieces, pieces - lasting
    self.sizes = pieces > lasting and sizes or in_use
    self.clock_us, self.shift_us, self.ahead_us = clock_us, shift_us, ahead_us
    self.last_us, self.latest_us = last_us, latest_us
    return self
end

-- Returns how many more units fit; negative if force used more than the limit.
local function room(self, limit)
    return limit.count - self.held
end

local function put(self, incarnation, slot, size, end_us)
    redis.call('ZADD', self.own_key, (ENDS + end_us) * size, piece(incarnation, slot, size))
    self.pieces = self.pieces + 1
    if not contains(self.sizes, size) then
        self.sizes = self.sizes + size
    end
end

-- Deletes some pieces that have ended, so that no single call pays for all.
local function forget_ended(self)
    local most = FORGOTTEN_MOST
    for size in next_size, self.sizes, 0.5 do
        local ended = redis.call('ZRANGEBYSCORE', self.own_key,
            ENDS * size, (ENDS + self.clock_us) * size, 'LIMIT', 0, most)
        if #ended > 0 then
            redis.call('ZREM', self.own_key, unpack(ended))
            self.pieces, self.expired = self.pieces - #ended, self.expired - #ended
            most = most - #ended
        end
        if most == 0 or self.expired == 0 then
            return
        end
    end
end

local function take(self, limit, weight, slot)
    if self.held == 0 then
        redis.call('UNLINK', self.own_key)
        untouched(self)
    elseif self.expired > 0 then
        forget_ended(self)
    end
    local end_us = self.clock_us + limit.hold_us
    for size in next_size, weight, 0.5 do
        put(self, nonce, slot, size, end_us)
    end
    self.held = self.held + weight
    self.last_us, self.latest_us = self.clock_us, max(self.latest_us, end_us)
end

-- Returns permits after a loss of data: all taken at the instant of the loss. They are stored only once they
-- change: see `take_lost`.
local function used_up(limit, at_us, own_key)
    local self = load(nil, nil, nil, limit, own_key)
    if now - at_us < limit.hold_us then
        self.held, self.latest_us, self.lost_us = limit.count, at_us + limit.hold_us, at_us
    end
    return self
end

local function take_lost(self, limit)
    if self.lost_us then
        local now_us = now
        now, self.lost_us, self.held = self.lost_us, nil, 0
        take(self, limit, limit.count, 0)
        now, self.clock_us = now_us, now_us
    end
end

-- Does nothing: a permit is taken with its receipt, which names it.
local function charge()
end

local function receipt(self, limit, cost, incarnation, slot)
    take(self, limit, cost, slot)
    return incarnation
end

local function force(self, limit, cost, slot)
    take_lost(self, limit)
    local forced = min(cost, 2 * limit.count - self.held)
    if forced > 0 then
        take(self, limit, forced, slot)
    end
end

-- Returns a hold's weight and end; nothing if it has ended or was released.
local function held_by(self, incarnation, slot)
    local weight, end_us = 0, 0
    for size in next_size, self.sizes, 0.5 do
        local score = redis.call('ZSCORE', self.own_key, piece(incarnation, slot, size))
        if score then
            weight, end_us = weight + size, tonumber(score) / size - ENDS
        end
    end
    if end_us > self.clock_us then
        return weight, end_us
    end
end

-- Returns end and name of the first or last piece of a size in a range of scores.
local function outermost(self, size, command, from, to)
    local found = redis.call(command, self.own_key, from, to, 'WITHSCORES', 'LIMIT', 0, 1)
    if found[1] then
        return tonumber(found[2]) / size - ENDS, found[1]
    end
end

-- Returns when the last hold ends.
local function latest(self)
    local latest_us = 0
    for size in next_size, self.sizes, 0.5 do
        local end_us = outermost(self, size, 'ZREVRANGEBYSCORE',
            (ENDS * 2 - 1) * size, (ENDS + self.clock_us + 1) * size)
        latest_us = max(latest_us, end_us or 0)
    end
    return latest_us
end

-- Returns the name of the hold that ends first; of two that end at one instant, the smaller name.
local function first(self)
    local first_us, incarnation, slot
    for size in next_size, self.sizes, 0.5 do
        local end_us, name = outermost(self, size, 'ZRANGEBYSCORE',
            (ENDS + self.clock_us + 1) * size, (ENDS * 2 - 1) * size)
        if end_us and (not first_us or end_us <= first_us) then
            local other, other_slot = unpack_record('>I6I4', name)
            if not first_us or end_us < first_us or other < incarnation
                or (other == incarnation and other_slot < slot) then
                first_us, incarnation, slot = end_us, other, other_slot
            end
        end
    end
    return incarnation, slot
end

-- Lowers a hold by at most `by`. Returns the units refunded, or nothing if nothing changed.
local function lower(self, incarnation, slot, by)
    local weight, end_us = held_by(self, incarnation, slot)
    if not weight or by == 0 then
        return
    end
    by = min(by, weight)
    local left = weight - by
    -- The pieces of the new weight differ from those of the old one only in some powers of two.
    for size in next_size, weight, 0.5 do
        if not contains(left, size) then
            redis.call('ZREM', self.own_key, piece(incarnation, slot, size))
            self.pieces = self.pieces - 1
        end
    end
    for size in next_size, left, 0.5 do
        if not contains(weight, size) then
            put(self, incarnation, slot, size, end_us)
        end
    end
    self.held = self.held - by
    if self.held == 0 then
        untouched(self)
    elseif left == 0 and end_us == self.latest_us then
        self.latest_us = latest(self)
    end
    return by
end

local function refund(self, limit, incarnation, at_us, amount, slot, unused)
    return lower(self, incarnation, slot, unused)
end

-- Lowers the use by `amount`. The holds that end first go first, since they are the most likely to be
-- abandoned. O(log n) for each hold that goes, or for all of them together.
local function lower_by(self, limit, amount)
    local returned = min(amount, self.held)
    if returned == 0 then
        return
    end
    take_lost(self, limit)
    if returned == self.held then
        untouched(self)
        return returned
    end
    local left = self.held - returned
    while self.held > left do
        local incarnation, slot = first(self)
        lower(self, incarnation, slot, self.held - left)
    end
    return returned
end

local function holds(self, incarnation, slot)
    return held_by(self, incarnation, slot) ~= nil
end

-- Extends a hold by `for_us` from now, by at most another max hold, and never shortens it.
local function renew(self, limit, incarnation, slot, for_us)
    local weight, end_us = held_by(self, incarnation, slot)
    if not weight then
        return
    end
    end_us = max(end_us, self.clock_us + min(limit.hold_us, for_us))
    for size in next_size, weight, 0.5 do
        redis.call('ZADD', self.own_key, (ENDS + end_us) * size, piece(incarnation, slot, size))
    end
    self.last_us, self.latest_us = self.clock_us, max(self.latest_us, end_us)
end

-- Returns the instant after which at most `room` is held. By rank if all pieces are of size 1, else by
-- bisection, so that calls of any cost need some tens of counts.
local function end_leaving(self, room)
    if self.lost_us then
        return self.latest_us
    end
    if self.sizes == 1 then
        local found = redis.call('ZREVRANGE', self.own_key, room, room, 'WITHSCORES')
        return tonumber(found[2]) - ENDS
    end
    local too_soon, late_enough = self.clock_us, self.latest_us
    while late_enough - too_soon > 1 do
        local between = floor((too_soon + late_enough) / 2)
        local held = 0
        for size in next_size, self.sizes, 0.5 do
            held = held + size * redis.call('ZCOUNT', self.own_key, (ENDS + between + 1) * size, (ENDS * 2 - 1) * size)
        end
        if held > room then
            too_soon = between
        else
            late_enough = between
        end
    end
    return late_enough
end

local function reply(self, limit, cost, out, i)
    local room = limit.count - cost
    local retry_after_us, reset_after_us = 0, 0
    if room < 0 then
        retry_after_us = -1
    elseif self.held > room then
        retry_after_us = end_leaving(self, room) - self.clock_us + self.ahead_us
    end
    if self.held > 0 then
        reset_after_us = self.latest_us - self.clock_us + self.ahead_us
    end
    out[i], out[i + 1], out[i + 2] = self.held, retry_after_us, reset_after_us
    return i + 3
end

-- Returns the record's kind and body, and the us until it is irrelevant; nothing once it is.
local function pack(self)
    if self.held == 0 then
        redis.call('UNLINK', self.own_key)
        return
    end
    local until_us = self.latest_us - self.clock_us + self.ahead_us
    keep(self.own_key, nil, until_us)
    return HELD, pack_record('>I7I7I7I4I4', self.last_us, self.shift_us, self.latest_us, self.pieces, self.sizes),
        until_us
end

-- Returns the us until a record is irrelevant under the parameters that it was written under.
local function until_us(value, kind, at)
    local last_us, shift_us, latest_us = unpack_record('>I7I7I7', value, at)
    -- At most as long as after a re-base, which the next call that reads it may make.
    return min(latest_us - shift_us - now, latest_us - last_us + 1000000)
end

return {
    width = 3, params = params, until_us = until_us, load = load, used_up = used_up, room = room, charge = charge,
    force = force, receipt = receipt, refund = refund, lower_by = lower_by, holds = holds, renew = renew, reply = reply, pack = pack,
}
