// The native observer engine: one translation unit, bound to Python with the pybind11 of the torch wheel.
//
// The headers are named as the Python modules that they mirror, and mean what those mean; this order is that of their layers.
#include <pybind11/pybind11.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "texts.h"
#include "rows.h"
#include "cells.h"
#include "geometry.h"
#include "kinds.h"
#include "fingerprints.h"
#include "lanes.h"
#include "lanes_python.h"
#include "phases.h"
#include "progress.h"
#include "outbox.h"
#include "outbox_python.h"
#include "storages.h"
#include "places.h"
#include "probes.h"
#include "names.h"
#include "modules.h"
#include "operators.h"
#include "canonical.h"
#include "randomness.h"
#include "here.h"
#include "generated.h"
#include "observer.h"
#include "standing.h"
#include "dispatch.h"
#include "launches.h"
#include "rank.h"
#include "slow_path.h"
#include "mode.h"
#include "views.h"
#include "observer_python.h"
#include "launches_python.h"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  opguard::Texts::bind(module);
  opguard::Progress::bind(module);
  opguard::bind_lanes(module);
  opguard::bind_phases(module);
  opguard::Outbox::bind(module);
  opguard::Places::bind(module);
  opguard::bind_probes(module);
  opguard::bind_names(module);
  opguard::ModuleCalls::bind(module);
  opguard::bind_observer(module);
  opguard::bind_launches(module);
}
