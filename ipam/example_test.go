package ipam_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"culvert/ipam"
)

// Three clusters use the same pod CIDR. The first gets a block elsewhere, and so does the second.
// Who asks again gets the same.
func ExampleLedger_Network() {
	own := netip.MustParsePrefix("10.0.0.0/16")
	plan, err := ipam.NewPlan(nil, []ipam.Taken{{Name: "network.local.podCIDRs[0]", Prefix: own}})
	if err != nil {
		log.Fatal(err)
	}
	var ledger ipam.Ledger
	for _, peer := range []string{"milan", "naples", "milan"} {
		owner := ipam.Owner{Peer: peer, Kind: ipam.Pod, Real: "10.0.0.0/16"}
		seen, err := ledger.Network(plan, owner, own, time.Unix(0, 0))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(peer, "is seen as", seen)
	}
	// Output:
	// milan is seen as 10.1.0.0/16
	// naples is seen as 10.2.0.0/16
	// milan is seen as 10.1.0.0/16
}

// What a Ledger gave is in a file, and stays when the process ends.
func ExampleStore() {
	dir, err := os.MkdirTemp("", "ipam")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "ipam.json")
	plan, err := ipam.NewPlan([]netip.Prefix{netip.MustParsePrefix("10.128.0.0/9")}, nil)
	if err != nil {
		log.Fatal(err)
	}

	err = ipam.Open(path).Update(context.Background(), func(l *ipam.Ledger) error {
		owner := ipam.Owner{Peer: "milan", Kind: ipam.Pod, Real: "10.0.0.0/16"}
		_, err := l.Network(plan, owner, netip.MustParsePrefix("10.0.0.0/16"), time.Now())
		return err
	})
	if err != nil {
		log.Fatal(err)
	}

	ledger, err := ipam.Open(path).Read() // as another process would
	if err != nil {
		log.Fatal(err)
	}
	for _, entry := range ledger.Entries() {
		fmt.Println(entry.Owner, "has", entry.RemappedText())
	}
	// Output:
	// milan pod 10.0.0.0/16 has 10.128.0.0/16
}
