package probe

import (
	"context"
	"fmt"
	"net/netip"

	"culvert/integration/lab/netns"
)

// SmallStream is how many bytes a check of addresses sends in each direction.
const SmallStream = 3<<20 + 7

// CheckSource sends a TCP stream in each direction and datagrams with and without fragments.
func (e *Ends) CheckSource(ctx context.Context) (string, error) {
	if _, err := e.Stream(ctx, SmallStream, SmallStream+1); err != nil {
		return "", fmt.Errorf("TCP: %w", err)
	}
	// The outside links have a smaller MTU than the pods', so routers fragment.
	if _, err := e.CheckFragments(ctx); err != nil {
		return "", fmt.Errorf("UDP: %w", err)
	}
	local := e.Local
	if !local.IsValid() {
		local = e.From.Address
	}
	return fmt.Sprintf("from %s for %s", e.WantSource, local), nil
}

// Ends is a pair of pods in different clusters, with their names for a table.
type Ends struct {
	From, To           *netns.Host
	Local              netip.Addr // source address of From, or the zero Addr for its kernel's choice
	Target, WantSource netip.Addr // how each sees the other
	Size               int        // bytes of the largest ping; 0: the pods' MTU
	Port               uint16     // the first port at which To listens in benches; 0: its kernel's choice
}

// Path names both ends for a table.
func (e *Ends) Path() string { return e.From.Name + " → " + e.To.Name }
