// Package layers measures, copies, packs and unpacks the layers of slots: upper directories of
// overlays, whose contents tenants shape.
//
// Each step takes one name relative to an open directory and follows no link, so nothing outside a
// layer is read or written. A tree of any depth takes a bounded number of descriptors and bounded
// memory.
package layers
