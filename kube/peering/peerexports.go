package peering

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"culvert/gateway/exports"
	"culvert/kube"
	"culvert/kube/objects"
)

const kindPeerExports = "PeerExports"

const (
	// The pause between two writes of PeerExports is as long as the last one took, which may have
	// had 20,000 endpoints, and at least this. A peer that has used up its budget waits longer.
	peerExportsPause = 400 * time.Millisecond
	retryPeerExports = 5 * time.Second  // after the API server has refused a request
	checkPeerExports = 30 * time.Second // between two looks whether somebody has changed it
	maxPeerExports   = 1_500_000        // bytes of JSON: etcd takes 1.5 MiB
)

// A why is the reason and the message of a condition.
type why struct{ reason, message string }

// A peerExports writes what the peer tells of ServiceExports into the PeerExports of the Peering's
// name, and judges nothing of it: culvert multicluster, which makes that object, does.
type peerExports struct {
	x      *serviceExchange
	budget *rate.Limiter              // of bytes to write
	have   *unstructured.Unstructured // as last read or written, without the list; nil: to be read
	told   []*exports.Service         // its list
	looked time.Time                  // when have was last read or written
	next   time.Time                  // nothing is asked of the API server before
}

// writePeerExports keeps PeerExports up to date while g is the active gateway.
func (x *serviceExchange) writePeerExports(ctx context.Context, g Running) {
	w := &peerExports{x: x, budget: kube.NewBudget()}
	tick := time.NewTicker(checkPeerExports)
	defer tick.Stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-x.news:
		case <-tick.C:
		case <-timer.C:
		}
		if !g.Speaks() {
			w.have, w.told = nil, nil
			continue
		}
		if w.round(ctx) {
			timer.Reset(w.next.Sub(x.source.now()))
		}
	}
}

// round writes the list if it differs. It returns true if there is more to do at w.next.
func (w *peerExports) round(ctx context.Context) (again bool) {
	s := w.x.source
	s.mu.Lock()
	p := s.state.good
	wanted := p != nil && s.state.peering != nil && !s.state.peering.Deleting && len(p.Services.Import) > 0
	s.mu.Unlock()
	now := s.now()
	if wanted && now.Before(w.next) { // to read a list that changes all the time takes long, too
		return true
	}
	var all []*exports.Service
	if wanted {
		all, _, wanted = w.x.exchange.Heard()
	}
	if !wanted {
		w.have, w.told = nil, nil
		w.say(why{})
		return false
	}
	w.next = now.Add(peerExportsPause)
	list := slices.DeleteFunc(slices.Clone(all), func(s *exports.Service) bool { return s.Type == exports.Labelled })
	if w.have != nil && slices.Equal(list, w.told) && now.Sub(w.looked) < checkPeerExports {
		return false
	}
	pause, err := w.put(ctx, list, now)
	w.looked = s.now()
	w.next = w.looked.Add(max(peerExportsPause, pause, w.looked.Sub(now)))
	switch {
	case err == nil:
		w.say(why{})
		return false
	case apierrors.IsConflict(err):
		w.have = nil
		return true
	}
	w.have, w.next = nil, w.looked.Add(retryPeerExports)
	w.say(whyNot(s.self.Name, err))
	return true
}

// put makes the object have a list. It returns for how long nothing may be written after that.
func (w *peerExports) put(ctx context.Context, list []*exports.Service, now time.Time) (pause time.Duration,
	err error) {
	s := w.x.source
	client := s.loop.Client.Resource(objects.PeerExports).Namespace(s.self.Namespace)
	services, err := json.Marshal(list)
	if err != nil {
		return 0, err
	}
	if len(services) > maxPeerExports {
		return 0, errTooLarge
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if w.have == nil || slices.Equal(list, w.told) {
		u, err := client.Get(ctx, s.self.Name, metav1.GetOptions{})
		s.loop.Causes.Log(ctx, "get", objects.PeerExports.Resource, err)
		if err != nil {
			return 0, err
		}
		var has []*exports.Service
		same := json.Unmarshal(objects.PartOf(u, "services"), &has) == nil && u.Object["heard"] != nil
		if text, err := json.Marshal(has); same && err == nil && bytes.Equal(text, services) {
			w.keep(u, list)
			return 0, nil
		}
		w.keep(u, nil)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": objects.Culvert, "kind": kindPeerExports,
		"metadata": w.have.Object["metadata"], "heard": now.UTC().Format(time.RFC3339),
		"services": json.RawMessage(services)}}
	pause = w.budget.ReserveN(now, len(services)).DelayFrom(now)
	written, err := client.Update(ctx, u, metav1.UpdateOptions{})
	s.loop.Causes.Log(ctx, "update", objects.PeerExports.Resource, err)
	if err == nil {
		w.keep(written, list)
	}
	return pause, err
}

func (w *peerExports) keep(u *unstructured.Unstructured, list []*exports.Service) {
	delete(u.Object, "services")
	w.have, w.told = u, list
}

func (w *peerExports) say(why why) {
	w.x.source.mu.Lock()
	defer w.x.source.mu.Unlock()
	w.x.unwritten = why
}

var errTooLarge = fmt.Errorf("what the peer exports needs more than %d bytes", maxPeerExports)

// whyNot says why PeerExports cannot be written.
func whyNot(peering string, err error) why {
	switch {
	case err == errTooLarge:
		return why{"TooLarge", "PeerExports " + peering + ": " + err.Error()}
	case apierrors.IsNotFound(err):
		return why{"NoPeerExports", "PeerExports " + peering + ": it is not there; culvert multicluster makes it, does it run?"}
	case apierrors.IsForbidden(err):
		return why{"Forbidden", "PeerExports " + peering +
			": the gateway may not write it; culvert kube template --peering " + peering + " prints the rights"}
	}
	return why{"Unwritten", "PeerExports " + peering + ": requests to the API server fail"}
}
