//go:build !nokube

package main

import (
	"io"
	"testing"

	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"

	"culvert/gateway/config"
	"culvert/integration/need"
	"culvert/kube"
	"culvert/kube/election"
	"culvert/kube/objects"
)

// TestLastEvent: a gateway that leaves says so although it has no time left.
func TestLastEvent(t *testing.T) {
	api := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{objects.Events: "EventList"})
	log := logrus.New()
	log.SetOutput(io.Discard)
	e := elect(api, &config.Config{Elected: true}, electionTimes{}, election.Options{},
		kube.Event{Kind: "Peering", Metadata: objects.Metadata{Name: "milan", Namespace: "culvert"}}, kube.Reporter{},
		logrus.NewEntry(log))
	e.stop = func() {} // nothing runs
	e.told("pod a was active and is standby")
	e.end()
	all, err := api.Resource(objects.Events).Namespace("culvert").List(t.Context(), metav1.ListOptions{})
	need.NoError(t, err)
	if len(all.Items) != 1 || all.Items[0].Object["reason"] != "RoleChanged" {
		t.Errorf("%v", all.Items)
	}
}
