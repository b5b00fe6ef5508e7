package pathmtu

import (
	"slices"
	"time"
)

const (
	// Floor is the smallest size that a Search finds, whatever probes say: every IPv4 host accepts
	// it (RFC 791, Section 3.1). So an end that swallows probes reduces its own size no further.
	Floor = 576
	// Small is the size of the probe that shows whether probes are answered at all.
	Small = 100

	// answerTime is how long an answer may take. RFC 8899, Section 5.1.1, requires a second and
	// recommends 15; so late answers count too.
	answerTime = time.Second
	// confirmInterval is the time between probes of a size that passes, on a leg in use.
	confirmInterval = 2 * time.Second
	// muteInterval is the time between probes of an end that answered nothing in muteRounds.
	muteInterval = 15 * time.Second
	// muteRounds is how many rounds in a row without an answer make an end count as mute.
	muteRounds = 3
	// raiseInterval is how long a smaller size is kept before larger ones are tried. RFC 8899,
	// Section 5.1.1, has 10 minutes for all paths; here only a path that fell again soon after it
	// rose waits that long (raiseLong).
	raiseInterval = time.Minute
	raiseLong     = 10 * time.Minute
	// tryInterval is the time between single probes of the configured size on a path that carries
	// less, to find out soon when it carries all again.
	tryInterval = 4 * time.Second

	// sizesAtOnce is how many sizes between two others are tried at once; step is their final
	// distance.
	sizesAtOnce = 16
	sizesAbove  = 6 // how many above them, so that one that passes shows that others were lost by chance
	step        = 4

	// Loss by congestion, as in a flood, says nothing about sizes (RFC 4821, Section 7.6.4). So an
	// edge must be proved against two probabilities. Among probes of similar sizes, all n below it
	// are answered and all n above it lost by chance at most once in 4^n. And of two sizes that are
	// step apart, the smaller is answered n times before the larger once in 2^n. RFC 8899, Section
	// 5.1.2, requires three losses.
	edgePairs = 8  // probes of both sizes in a round
	edgeProof = 16 // bits
)

// Way is the direction in which packets vanish.
type Way uint8

// Ways. An end that only answers pings does not show the direction.
const (
	Either Way = iota
	There      // and possibly back too
	Back       // only back
)

func (w Way) String() string { return [...]string{"to or from", "to", "from"}[w] }

// Kind is the kind of a Probe.
type Kind uint8

const (
	// Echo is an ICMP echo request: its answer has the same size.
	Echo Kind = iota
	// ShortEcho is an echo request that also asks for a short answer, which tests only the way
	// there. Other hosts answer it as usual.
	ShortEcho
	// ARP is a padded ARP request, whose answer is short.
	ARP
)

// A Probe is a request that occupies the path like an IP packet of this size.
type Probe struct {
	Size int
	Kind Kind
}

// MaxProbes is the maximum number of probes in a round.
const MaxProbes = sizesAtOnce + sizesAbove + 4

// Result is the current knowledge about a leg.
type Result struct {
	Size  int  // the largest packet known to pass both ways
	Known bool // by a probe; otherwise Size is the configured one
	Way   Way  // where larger ones vanish
	// OneWay: the other end answers no echo requests. So Size is for the way there, and the way
	// back is unknown.
	OneWay bool
}

type phase uint8

const (
	settled phase = iota
	doubting
	rising
)

// A round is a set of probes sent at one time, and their outcomes.
type round struct {
	nonce    uint64
	at       time.Duration
	probes   []Probe
	answered []bool
	open     bool
}

// A Search is the state of one leg.
type Search struct {
	Result
	ceiling int
	cut     int // the other end fragments larger answers, so nothing is known about larger packets; 0 = it does not
	arp     bool

	phase    phase
	mute     int // rounds in a row without any answer
	lo, hi   int // a size that passes, 0 if unknown, and one that does not, 0 if untried
	proof    int // bits of proof that nothing as large as hi passes
	raiseAt  time.Duration
	tryAt    time.Duration // when the configured size is tried next
	trying   bool          // in this round
	rose     time.Duration // when Size last grew; 0 = never
	now, was round
	late     bool // a probe of Size was answered after its round
	short    bool // the other end gives short answers
	there    bool // a probe of Size arrived there
}

// New returns a Search that never finds more than ceiling. arp: the other end answers ARP.
func New(ceiling int, arp bool) *Search {
	return &Search{Result: Result{Size: ceiling}, ceiling: ceiling, arp: arp}
}

// Look must be called at least once in confirmInterval. nonce must be new and unpredictable; used
// says whether the leg is in use. The caller sends the returned probes in order, the n-th with
// number n: the most important ones come first, because hosts limit how many they answer. changed:
// Result has changed.
func (s *Search) Look(now time.Duration, nonce uint64, used bool) (probes []Probe, changed bool) {
	r := &s.now
	if r.open {
		if now-r.at < answerTime {
			return nil, false
		}
		r.open = false
		changed = s.conclude(now)
	}
	if !s.due(now, used) {
		return nil, changed
	}
	if s.phase == settled && s.Size < s.ceiling && now >= s.raiseAt {
		s.phase, s.lo, s.hi = rising, s.Size, s.ceiling+1
	}
	if s.trying = s.phase == settled && s.Size < s.ceiling && now >= s.tryAt; s.trying {
		s.tryAt = now + tryInterval
	}
	s.now, s.was = s.was, s.now
	*r = round{nonce: nonce, at: now, probes: s.plan(r.probes[:0]), open: true}
	r.answered = make([]bool, len(r.probes))
	return r.probes, changed
}

// Returned must be called when an end that was mute answers otherwise: it is probed at once.
func (s *Search) Returned() { s.mute = 0 }

func (s *Search) due(now time.Duration, used bool) bool {
	since := now - s.now.at
	switch {
	case s.now.nonce == 0 && s.was.nonce == 0:
		return used
	case s.mute >= muteRounds:
		return used && since >= muteInterval
	case s.phase != settled, s.mute > 0 && !s.Known:
		return true
	}
	return used && since >= confirmInterval
}

// target is the largest size that is assumed to pass and is answered unfragmented.
func (s *Search) target() int {
	if s.cut > 0 && s.cut < s.Size {
		return s.cut
	}
	return s.Size
}

// below is the size that represents all that pass: lo, or the small one if no other is known to
// pass.
func (s *Search) below() int { return max(s.lo, Small) }

// edge reports whether lo and hi are close enough to stop.
func (s *Search) edge() bool { return s.hi > 0 && s.hi-max(s.lo, Floor-1) <= step }

// plan returns the probes of the next round. Sizes fall, or alternate, so that at most two of them
// form a train. The last one is a small echo request; if the other end answers none, a small ARP
// probe precedes it.
func (s *Search) plan(p []Probe) []Probe {
	target, kind := s.target(), Echo
	if s.OneWay {
		kind = ARP
	}
	p = append(p, Probe{target, kind})
	if s.trying {
		p = append(p, Probe{s.ceiling, kind})
	}
	switch s.phase {
	case doubting:
		if s.hi == 0 {
			s.hi = target
		}
		switch {
		case s.OneWay:
		case s.arp:
			p = append(p, Probe{target, ARP})
		default:
			p = append(p, Probe{target, ShortEcho})
		}
		p = between(p, kind, s.hi-1, target, sizesAbove)
		if !s.edge() {
			p = between(p, kind, max(s.lo, Floor-1), s.hi, sizesAtOnce)
			break
		}
		for range edgePairs {
			p = append(p, Probe{s.hi, kind}, Probe{s.below(), kind})
		}
	case rising:
		if s.hi > s.ceiling {
			p = append(p, Probe{s.ceiling, kind})
		}
		p = between(p, kind, s.lo, min(s.hi, s.ceiling), sizesAtOnce)
	}
	if s.OneWay {
		p = append(p, Probe{Small, ARP})
	}
	return append(p, Probe{Small, ShortEcho})
}

// between appends up to n sizes between two, the largest first.
func between(p []Probe, kind Kind, lo, hi, n int) []Probe {
	last := hi
	for i := n; i > 0; i-- {
		if size := lo + (hi-lo)*i/(n+1); size > lo && size < last {
			p = append(p, Probe{size, kind})
			last = size
		}
	}
	return p
}

// Answered handles an answer: its round and number, and its size. fragment: it is the first
// fragment of several. It returns false if no such answer is expected.
func (s *Search) Answered(nonce uint64, number, size int, fragment bool) bool {
	r := &s.now
	if nonce != r.nonce {
		if r = &s.was; nonce != r.nonce {
			return false
		}
	}
	if nonce == 0 || number >= len(r.probes) {
		return false
	}
	p := r.probes[number]
	switch {
	case p.Kind == ARP:
		return false
	case p.Kind == ShortEcho && size < p.Size:
		s.short = true
		s.there = s.there || p.Size > Small
	case fragment: // the whole request arrived, and the answer is cut to the other end's own MTU
		s.cut = max(size, Floor)
	case size < p.Size || p.Kind == ShortEcho && p.Size > Small:
		return true // it proves nothing
	}
	if p.Kind == Echo && p.Size == r.probes[0].Size {
		number = 0
	}
	if !r.open {
		s.late = s.late || number == 0 && r.probes[0].Size >= s.target()
	}
	r.answered[number] = true
	return true
}

// AnsweredARP handles the answer to the ARP probe with this number in this round.
func (s *Search) AnsweredARP(number int) {
	switch r := &s.now; {
	case number >= len(r.probes) || r.probes[number].Kind != ARP:
	case s.OneWay && r.probes[number].Size == r.probes[0].Size:
		r.answered[0] = true
	case s.OneWay:
		r.answered[number] = true
	default:
		s.there = true
	}
}

// conclude ends a round.
func (s *Search) conclude(now time.Duration) (changed bool) {
	r := &s.now
	late, echo := s.late, r.answered[len(r.probes)-1]
	s.late = false
	if s.OneWay && echo {
		s.OneWay = false // from now on; ARP says nothing about the way back
		s.finish()
		return true
	}
	if s.trying && r.answered[1] { // the path carries everything again
		s.Size, s.Known, s.rose, s.mute, s.there = s.ceiling, true, now, 0, false
		s.finish()
		return true
	}
	switch {
	case r.answered[0] || late:
		s.mute, s.there = 0, false
		changed = !s.Known
		s.Known = true
		if s.phase == rising {
			return s.rise(now) || changed
		}
		s.finish()
		return changed
	case !slices.Contains(r.answered, true): // says nothing about sizes
		s.mute++
		switch {
		case s.arp && !s.OneWay && (s.mute == muteRounds || !s.Known):
			s.OneWay, s.mute = true, 0
		case s.mute != muteRounds:
			return false
		}
		s.finish()
		return false
	}
	s.mute = 0
	switch {
	case s.phase == doubting:
		if s.prove(); s.proof >= edgeProof && s.edge() {
			s.fall(now)
			return true
		}
	case s.Size > Floor:
		s.phase, s.lo, s.hi, s.there = doubting, 0, 0, false
	default: // there is nothing smaller to find
		s.raiseAt = now + raiseInterval
		s.finish()
	}
	return false
}

// prove narrows lo and hi, and counts evidence that tells a black hole from loss.
func (s *Search) prove() {
	edge, lo, hi := s.edge(), s.lo, s.hi
	if s.narrow(); s.lo >= hi { // it passes after all
		s.proof = 0
		return
	}
	passed, missed, above := 0, 0, 0
	for i, p := range s.now.probes[:len(s.now.probes)-1] {
		switch {
		case p.Kind != s.now.probes[0].Kind:
		case p.Size > s.below():
			above++
		case s.now.answered[i]:
			passed++
		default:
			missed++
		}
	}
	switch {
	case lo > 0 && hi-lo <= sizesAtOnce*step && missed == 0: // the sizes are similar
		s.proof += 2 * min(passed, above)
	case edge && lo > 0 && passed == 0: // lo no longer passes
		s.lo, s.hi, s.proof = 0, lo, 0
	case edge:
		s.proof += passed
	}
}

// narrow updates lo and hi from the answers.
func (s *Search) narrow() {
	for i, p := range s.now.probes {
		if s.now.answered[i] && p.Kind != ShortEcho && p.Size >= Floor {
			s.lo = max(s.lo, p.Size)
		}
	}
	for i, p := range s.now.probes {
		if !s.now.answered[i] && p.Kind == s.now.probes[0].Kind && p.Size > s.lo && (p.Size < s.hi || s.hi <= s.lo) {
			s.hi = p.Size
		}
	}
}

func (s *Search) fall(now time.Duration) {
	s.Way = Either
	switch {
	case s.there:
		s.Way = Back
	case s.short || s.arp:
		s.Way = There
	}
	s.Size, s.Known = min(max(s.lo, Floor), s.Size), true
	pause := raiseInterval
	if s.rose != 0 && now-s.rose < raiseLong {
		pause = raiseLong
	}
	s.raiseAt, s.tryAt = now+pause, now+tryInterval
	if pause == raiseLong {
		s.tryAt = s.raiseAt
	}
	s.finish()
}

func (s *Search) rise(now time.Duration) (changed bool) {
	s.narrow()
	if s.lo > s.Size+step || s.lo > s.Size && s.lo == s.ceiling {
		s.Size, s.rose, changed = s.lo, now, true
	}
	if s.hi-s.lo <= step || s.Size >= s.ceiling {
		s.raiseAt = now + raiseInterval
		s.finish()
	}
	return changed
}

func (s *Search) finish() { s.phase, s.lo, s.hi, s.proof = settled, 0, 0, 0 }
