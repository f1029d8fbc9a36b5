#include <algorithm>

#include "base/error.hpp"
#include "cluster/communicator.hpp"
#include "cluster/mpi_call.hpp"

namespace ranktune::cluster {
namespace {

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(const Session& session, std::size_t reduce_elements)
      : Communicator(session.rank(), session.world_size()), reduce_elements_(reduce_elements) {
    if (world_size_ == 1) return;
    RT_MPI(MPI_Comm_dup(session.world(), &communicator_));
    RT_MPI(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN));
  }

  void all_reduce_sum(float* data, std::size_t count, void* /*stream*/) override {
    if (world_size_ == 1) return;
    check_open();
    for (std::size_t done = 0; done < count; done += reduce_elements_) {
      const int part = static_cast<int>(std::min(reduce_elements_, count - done));
      RT_MPI(MPI_Allreduce(MPI_IN_PLACE, data + done, part, MPI_FLOAT, MPI_SUM, communicator_));
    }
  }

  void broadcast(void* data, std::size_t bytes, int root, void* /*stream*/) override {
    if (world_size_ == 1) return;
    check_open();
    detail::broadcast_bytes(communicator_, data, bytes, root);
  }

  void synchronize(void* /*stream*/) override {}  // every call has blocked

  std::string name() const override { return "MPI (" + mpi_library() + ")"; }

  void close() override {
    if (communicator_ != MPI_COMM_NULL) RT_MPI(MPI_Comm_free(&communicator_));
  }

 private:
  void check_open() const { RT_CHECK(communicator_ != MPI_COMM_NULL, "the communicator is open"); }

  std::size_t reduce_elements_;
  MPI_Comm communicator_ = MPI_COMM_NULL;
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(const Session& session, std::size_t reduce_elements) {
  return std::make_unique<MpiCommunicator>(session, reduce_elements);
}

}  // namespace ranktune::cluster
