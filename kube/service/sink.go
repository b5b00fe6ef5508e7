package service

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"culvert/kube/objects"
)

// put adds an object. It parses the object before taking the lock.
func (s *Source) put(o *objects.Object) {
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
func (s *Source) take(kind string, all []*objects.Object) {
	list := make([]parsed, 0, len(all))
	for _, o := range all {
		list = append(list, read(o, s.self))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	there := make(map[Name]bool, len(all))
	changed := !s.complete[kind]
	for _, o := range list {
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
	k.put(objects.Of(k.kind, u))
}

func (k sink) Delete(u *unstructured.Unstructured) {
	k.remove(k.kind, Name{u.GetNamespace(), u.GetName()})
}

func (k sink) Replace(all []*unstructured.Unstructured) {
	list := make([]*objects.Object, 0, len(all))
	for _, u := range all {
		list = append(list, objects.Of(k.kind, u))
	}
	k.take(k.kind, list)
}
