package nat

// A wideSlab holds the addresses of IPv6 connections, so that IPv4 entries need no room for them:
// one cache line each, in chunks that never move. It belongs to a table of connections, whose lock
// guards it.
type wideSlab struct {
	chunks []*wideChunk
	free   uint64 // first free one; each begins with the next one's index; 0 = none
	high   uint64 // how many were ever used, including number 0, which never is
}

// A wideChunk holds the addresses of chunkEntries connections, as in Tuple.Words, by direction.
type wideChunk [chunkEntries][2][4]uint64

func (s *wideSlab) at(number uint64) *[2][4]uint64 {
	return &s.chunks[number/chunkEntries][number%chunkEntries]
}

// take stores a copy of addresses, and returns its index.
func (s *wideSlab) take(addresses *[2][4]uint64) uint64 {
	number := s.free
	if number != 0 {
		s.free = s.at(number)[0][0]
	} else {
		if s.high%chunkEntries == 0 {
			s.chunks = append(s.chunks, new(wideChunk))
		}
		s.high = max(s.high, 1)
		number = s.high
		s.high++
	}
	*s.at(number) = *addresses
	return number
}

// give frees the addresses at number.
func (s *wideSlab) give(number uint64) {
	s.at(number)[0][0] = s.free
	s.free = number
}
