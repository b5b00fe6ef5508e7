package service

import (
	"errors"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"culvert/kube"
)

// put adds an object. It parses the object before taking the lock.
func (s *Source) put(o *Object) {
	r := read(o, s.self)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakeIf(s.state.put(r))
}

func (s *Source) remove(kind string, name Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakeIf(s.state.Delete(kind, name))
}

// take replaces all objects of a kind.
func (s *Source) take(kind string, all []*Object) {
	objects := make([]parsed, 0, len(all))
	for _, o := range all {
		objects = append(objects, read(o, s.self))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	there := make(map[Name]bool, len(all))
	changed := !s.complete[kind]
	for _, o := range objects {
		there[Name{o.Metadata.Namespace, o.Metadata.Name}] = true
		changed = s.state.put(o) || changed
	}
	for _, name := range s.state.names(kind) {
		if !there[name] {
			changed = s.state.Delete(kind, name) || changed
		}
	}
	s.complete[kind] = true
	s.wakeIf(changed)
}

// wakeIf wakes Run if something has changed.
//
// +checklocks:s.mu
func (s *Source) wakeIf(changed bool) {
	if changed {
		s.changed = true
		signal(s.wake)
	}
}

// A sink takes the objects of a kind.
type sink struct {
	*Source
	kind string
}

func (k sink) Add(u *unstructured.Unstructured) {
	if o, err := ObjectOf(k.kind, u); err == nil {
		k.put(o)
	}
}

func (k sink) Delete(u *unstructured.Unstructured) {
	k.remove(k.kind, Name{u.GetNamespace(), u.GetName()})
}

func (k sink) Replace(all []*unstructured.Unstructured) {
	objects := make([]*Object, 0, len(all))
	for _, u := range all {
		if o, err := ObjectOf(k.kind, u); err == nil {
			objects = append(objects, o)
		}
	}
	k.take(k.kind, objects)
}

// ObjectOf takes the parts used here of an object of a kind.
func ObjectOf(kind string, u *unstructured.Unstructured) (*Object, error) {
	x := &Object{Kind: kind, Metadata: kube.MetadataOf(u)}
	var failed error
	part := func(name string) []byte {
		p, err := kube.PartOf(u, name)
		failed = errors.Join(failed, err)
		return p
	}
	switch kind {
	case KindSlice:
		x.AddressType, x.Endpoints, x.Ports = part("addressType"), part("endpoints"), part("ports")
	case KindNode:
		x.Status = part("status")
	default:
		x.Spec, x.Status, x.Annotations = part("spec"), part("status"), u.GetAnnotations()
	}
	return x, failed
}
